"""The command `moorage audit`: findings in a running cloud, and on request their healing."""

import argparse
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cliff.lister import Lister

from moorage import errors
from moorage.cli.arguments import argument, positive
from moorage.cli.audit import findings
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.findings import CloudState, Finding
from moorage.cli.audit.healing import Healer
from moorage.cli.command import Configured, Table, shown
from moorage.config.options import required
from moorage.service.process import collect_garbage_seldom

LOG = logging.getLogger(__name__)

CLEAN, FINDINGS, INCOMPLETE = 0, 1, 2
NOT_SEEN = "not seen"


class Examination(NamedTuple):
    """The findings of both collections, the parts that could not be read, and the last collected state."""

    findings: list[Finding]
    unseen: dict[str, str]
    state: CloudState


def examine(look: Callable[[], CloudState], settle: float, sleep: Callable[[float], None] = time.sleep) -> Examination:
    """Collect and judge, and if there are findings again after ``settle`` seconds; return those that both have."""
    state = look()
    found = findings.judge(state)
    unseen = dict(state.unseen)
    if found:
        sleep(settle)
        del state  # two collections of a large cloud may not fit into memory
        state = look()
        found = findings.settled(found, findings.judge(state))
        unseen |= state.unseen
    return Examination(found, unseen, state)


class AuditShow(Configured, Lister):
    """Compare the records of the store, conductors, cells and schedulers, and report contradictions.

    The command changes nothing without --apply, and is safe on a live cloud: it checks each finding twice and reports
    only those that are still there. The exit status is 0 if there are no findings, 1 if there are any, and 2 if there
    are none but a part could not be read.

    With --heal, a column shows the remedy for each finding. With --heal --apply, the command applies the remedies; the
    exit status then depends on the findings that remain.
    """

    at = "looking"

    arguments = (
        argument(
            "--settle",
            type=positive,
            default=2.0,
            metavar="SECONDS",
            help="Seconds between the first and the second check (default: %(default)s)",
        ),
        argument(
            "--timeout",
            type=positive,
            metavar="SECONDS",
            help="Time to wait for the answer of each part (default: [rpc] call_timeout)",
        ),
        argument("--heal", action="store_true", help="Show the remedy for each finding"),
        argument("--apply", action="store_true", help="With --heal: apply the remedies"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return a row for each finding, and one for each part that could not be read."""
        required(self.calling, "DEFAULT", "transport_url")
        if parsed_args.apply and not parsed_args.heal:
            raise errors.InvalidRequest(path="command line", reason="--apply needs --heal")
        clients = self.clients(parsed_args.timeout or self.calling.rpc.call_timeout)
        # An audit keeps most of what it reads. To examine it again and again takes two fifths of the time.
        collect_garbage_seldom()

        def examined() -> Examination:
            def look() -> CloudState:
                state = AuditCollector(self.calling, clients).collect()
                self.elapsed.says("looking once more")
                return state

            return examine(look, parsed_args.settle)

        first = examined()
        healer = Healer(clients)
        if not parsed_args.heal:
            return self._shown(first, {})
        if not parsed_args.apply:
            return self._shown(first, healer.plan(first.findings, first.state).remedies)
        last, remedies = heal(healer, first, examined)
        return self._shown(last, remedies, first)

    def _shown(
        self, last: Examination, remedies: Mapping[tuple[str, str, str], str], first: Examination | None = None
    ) -> Table:
        """Return the rows of the findings that are gone, followed by the rows of the remaining ones."""
        self._verdict = FINDINGS if last.findings else INCOMPLETE if last.unseen else CLEAN
        left = {finding.key for finding in last.findings}
        gone = [finding for finding in (first.findings if first else ()) if finding.key not in left]
        # A finding is also gone if the part that contradicts it did not answer.
        outcome = "not checked again" if last.unseen else "healed"
        rows = [(one.kind, one.subject, one.detail, outcome) for one in gone]
        rows += [(one.kind, one.subject, one.detail, remedies.get(one.key, "nothing")) for one in last.findings]
        rows += [(NOT_SEEN, part, reason, "nothing") for part, reason in last.unseen.items()]
        columns: tuple[str, ...] = ("finding", "subject", "detail", "remedy")
        width = len(columns) if self._shows_remedies else len(columns) - 1
        return columns[:width], [shown(row[:width]) for row in rows]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the rows, and return the exit status."""
        self._shows_remedies: bool = parsed_args.heal
        self.only_reads = not parsed_args.apply
        self._verdict = INCOMPLETE
        try:
            super().run(parsed_args)
        except BrokenPipeError:
            raise  # The reader of the output has ended, as in every command.
        except errors.MoorageError as fault:
            # For instance, the configuration is unreadable: nothing was collected, and this is not a finding.
            LOG.error("%s", fault.with_code)
            return INCOMPLETE
        except Exception as fault:  # otherwise the exit status would be 1, which means that there are findings
            if self.app.options.debug:
                raise
            LOG.error("%s: %s", type(fault).__name__, fault)
            return self._verdict or INCOMPLETE
        return self._verdict


#: Rounds of healing and collecting: one heal may release allocations that have blocked another.
_ROUNDS = 5


def heal(
    healer: Healer, first: Examination, examined: Callable[[], Examination]
) -> tuple[Examination, dict[tuple[str, str, str], str]]:
    """Heal until no finding is left or nothing changes; return the remaining findings with their reasons."""
    last, reasons = first, dict[str, str]()
    for _ in range(_ROUNDS):
        plan = healer.plan(last.findings, last.state)
        if not plan:
            break
        reasons = healer.carry_out(plan)
        before, last = last, examined()
        if {one.key for one in before.findings} == {one.key for one in last.findings}:
            break
    why = ((one.key, reasons.get(one.instance_uuid or "") or reasons.get(one.subject)) for one in last.findings)
    return last, {key: f"not healed: {reason}" for key, reason in why if reason is not None}
