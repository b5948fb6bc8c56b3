"""The command of the simulation: run many histories, and describe each that breaks a promise by a short story."""

import argparse
import pkgutil
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from harness.simulation.story import Story, draw
from moorage.cli.arguments import number_from

_say = partial(print, flush=True)
#: Seconds of the machine's clock between two progress lines.
_REPORT_INTERVAL = 60.0

if TYPE_CHECKING:
    from harness.simulation.history import Outcome


def load(named: str | None) -> None:
    """Call ``module:function``, if one is given.

    :raises SystemExit: there is no such function.
    """
    if named is None:
        return
    try:
        function = pkgutil.resolve_name(named)
    except (ImportError, ValueError, AttributeError) as fault:
        function, reason = None, str(fault)
    else:
        reason = "that is not a function"
    if not callable(function):
        sys.stderr.write(f"--load {named!r} is not MODULE:FUNCTION: {reason}\n")
        raise SystemExit(2)
    function()


def main(asked: argparse.Namespace) -> int:
    """Run histories; return 0 if all promises are kept, and 1 if one is broken."""
    _say(f"seed {asked.seed}: {asked.histories} histories of {asked.operations} operations")
    from harness.simulation import forks

    forks.prepare()
    spent = broken = 0
    began = last = _seconds()
    counts: Counter[str] = Counter()
    stories = (draw(name, asked.operations) for name in _names(asked.seed, asked.histories)[asked.after :])
    for story, outcome in forks.outcomes(stories, asked.jobs):
        spent += 1
        counts.update(outcome.counts)
        if asked.verbose:
            _say(
                f"{story.seed}: trace {outcome.trace}, {outcome.switches} switches, {outcome.commits} commits, "
                f"{outcome.virtual_seconds:.0f} s: {outcome.broken or 'kept'}",
                flush=True,
            )
        if _seconds() - last > _REPORT_INTERVAL:
            last = _seconds()
            rate = _rate(spent, last - began)
            _say(f"{asked.after + spent} of {asked.histories} histories, {rate}, {broken} with a broken promise")
        if outcome.broken:
            broken += 1
            _tell(story, outcome, asked)
            if broken >= asked.most:
                break
    _say(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    _say(f"{spent} histories, {broken} with a broken promise; {_rate(spent, _seconds() - began)}")
    return 1 if broken else 0


def _seconds() -> float:
    """Return the time of the machine's clock, by a function that the simulation does not replace."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _rate(histories: int, seconds: float) -> str:
    return f"{60 * histories / max(seconds, 0.001):.0f} a minute"


def _names(seed: str, histories: int) -> list[str]:
    """Return the seed of each history: a single history gets the given seed, so that a printed seed can be replayed."""
    return [seed] if histories == 1 else [f"{seed}/{number}" for number in range(histories)]


def _tell(story: Story, outcome: "Outcome", asked: argparse.Namespace) -> None:
    """Print a history that breaks a promise, in its shortest form, and the command that replays it."""
    tries = 0 if asked.as_it_is else asked.shrink
    _say(f"\n{story.seed} breaks a promise: {outcome.broken}")
    # A replay runs the whole history, so this trace is printed and not that of the shortest form.
    trace = outcome.trace
    if tries:
        from harness.simulation.forks import Starter
        from harness.simulation.shrink import shrunk

        with closing(Starter(story.start)) as starter:
            story, outcome = shrunk(story, outcome, starter.outcome_of, tries)
        _say(f"in short, {len(story.actions)} operations and {len(story.faults)} faults: {outcome.broken}")
    _say("\n".join(story.told()))
    _say("what happened:", *outcome.happened, sep="\n")
    again = ["--histories", "1", "--seed", story.seed, "--operations", str(asked.operations)]
    again += [] if asked.load is None else ["--load", asked.load]
    _say(f"trace {trace}; again: python -m harness.simulation {shlex.join(again)}\n")


def parsed(arguments: Sequence[str], today: str) -> argparse.Namespace:
    """Parse the arguments of the command; the default seed is the date."""
    parser = argparse.ArgumentParser(prog="python -m harness.simulation", description=__doc__)
    parser.add_argument("--seed", default=today, help="Random seed (default: the date, %(default)s)")
    for name, least, default, what in (
        ("--histories", 1, 1, "Number of histories"),
        ("--after", 0, 0, "Number of histories to skip, because an interrupted run has done them"),
        ("--operations", 1, 50, "Operations per history"),
        ("--jobs", 1, 1, "Number of processes; each runs one history at a time"),
        ("--most", 1, 1, "Stop after this number of histories that break a promise"),
        ("--shrink", 0, 150, "Maximum number of stories to try in order to shorten a failing one"),
    ):
        parser.add_argument(name, type=number_from(least), default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument("--as-it-is", action="store_true", help="Do not shorten a failing story")
    parser.add_argument("--verbose", action="store_true", help="Print a line for each history")
    parser.add_argument("--load", help="Function to call before the first history, as MODULE:FUNCTION")
    asked = parser.parse_args(arguments)
    try:
        asked.seed.encode()
    except UnicodeEncodeError:
        parser.error(f"--seed {asked.seed!r} is not text in UTF-8")
    if asked.after >= asked.histories:
        parser.error(f"--after {asked.after} leaves none of {asked.histories} histories")
    return asked
