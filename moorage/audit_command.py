"""`moorage audit`: what is wrong in a cloud, without changing or stopping anything."""

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from cliff.lister import Lister

from moorage import audit, errors
from moorage.audit import Finding, Sight
from moorage.commands import Configured, positive, shown
from moorage.looking import Look
from moorage.options import required

LOG = logging.getLogger(__name__)

CLEAN, FINDINGS, INCOMPLETE = 0, 1, 2
NOT_SEEN = "not seen"


def examine(
    look: Callable[[], Sight], settle: float, sleep: Callable[[float], None] = time.sleep
) -> tuple[list[Finding], dict[str, str]]:
    """Look, and where anything is found look again; return what was found twice, and what could not be seen.

    :param settle: seconds between the two.
    """
    sight = look()
    found = audit.judge(sight)
    unseen = dict(sight.unseen)
    if found:
        sleep(settle)
        again = look()
        found = audit.settled(found, audit.judge(again))
        unseen |= again.unseen
    return found, unseen


class AuditShow(Configured, Lister):
    """Compare what the store, the conductors, the cells and the schedulers say; change nothing.

    Safe on a live cloud: what is found is looked at again, and counts only if it is still there. The exit status is 0
    if nothing was found, 1 if anything was, and 2 if nothing was found but not everything could be looked at.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--settle", type=positive, default=2.0, metavar="SECONDS", help="between two looks; default: %(default)s")
        add(
            "--timeout",
            type=positive,
            metavar="SECONDS",
            help="how long each part may take to answer; default: [rpc] call_timeout",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Return a row a finding, and one for each part that could not be looked at."""
        required(self.conf, "DEFAULT", "transport_url")
        reach = self.reach(parsed_args.timeout or self.conf.rpc.call_timeout)
        found, unseen = examine(lambda: Look(self.conf, reach).sight(), parsed_args.settle)
        self._verdict = FINDINGS if found else INCOMPLETE if unseen else CLEAN
        rows = [(finding.kind, finding.subject, finding.detail) for finding in found]
        rows += [(NOT_SEEN, part, reason) for part, reason in unseen.items()]
        return ("finding", "subject", "detail"), [shown(row) for row in rows]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the rows, and tell by the exit status what they come to."""
        try:
            super().run(parsed_args)
        except errors.MoorageError as fault:
            # A configuration that cannot be read, say: nothing was looked at, which is no finding.
            LOG.error("%s", fault)
            return INCOMPLETE
        return self._verdict
