"""``python -m support.breaks``: try deliberate breaks of promises, and print a line of a table for each.

Run it from the folder of the repository, with ``PYTHONPATH=tests``. It returns 1 if a break is noticed by no test.
"""

import argparse
import sys
from functools import partial

from support.breaks.catalog import BREAKS
from support.breaks.description import Break
from support.breaks.trials import fails_tests, found_by_simulation

_say = partial(print, flush=True)

#: The length of the shown text of the simulation: the promise, and the beginning of the description.
_SHOWN = 60


def _line(one: Break, asked: argparse.Namespace, noticed: bool) -> str:
    tests = ", ".join(f"`{test.rpartition('::')[2]}`" for test in one.tests) if noticed else "**nobody**"
    found = found_by_simulation(one, asked.seed, asked.histories, asked.jobs) if asked.histories else None
    missed = f"not in {asked.histories}" if asked.histories else "not tried"
    after = f"in {found[0]}: {found[1][:_SHOWN]}" if found else missed
    return f"| {one.promise} | `{one.name}` | {one.lost} | {tests} | {after} |"


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.breaks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="print only their names")
    parser.add_argument("--seed", default="break", help="of the simulation, default %(default)s")
    parser.add_argument("--histories", type=int, default=0, help="of the simulation, by default none")
    parser.add_argument("--jobs", type=int, default=1, help="number of histories at the same time")
    parser.add_argument("--no-tests", action="store_true", help="run only the simulation")
    asked = parser.parse_args()
    if unknown := set(asked.names) - BREAKS.keys():
        parser.error(f"no such break: {', '.join(sorted(unknown))}; --list prints their names")
    unnoticed = False
    for name in asked.names or BREAKS:
        if asked.list:
            _say(name)
            continue
        noticed = asked.no_tests or fails_tests(BREAKS[name])
        unnoticed = unnoticed or not noticed
        _say(_line(BREAKS[name], asked, noticed))
    return 1 if unnoticed else 0


sys.exit(_main())
