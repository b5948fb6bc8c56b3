"""The sub-command `moorage resource provider reshape`."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cliff.lister import Lister
from msgspec.structs import asdict

from moorage.cli import progress
from moorage.cli.arguments import argument
from moorage.cli.command import Table, shown
from moorage.messages import DEFAULT_SEARCH_STEPS
from moorage.model import Inventory, ReshapePlan
from placement_store.commands import reshape_file, reshape_fleet
from placement_store.commands.placement_command import PlacementCommand
from placement_store.commands.reshape_file import Entry, MalformedFile
from placement_store.commands.reshape_fleet import (
    DONE,
    MOVED_BEFORE,
    NOT_BEGUN,
    PLANNED,
    REFUSED,
    UNKNOWN,
    EntryOutcome,
)

LOG = logging.getLogger(__name__)

ALL_DONE, NOTHING_DONE, SOME_DONE = 0, 1, 2


class ProviderReshape(PlacementCommand, Lister):
    """Move inventories with their allocations between providers of hosts' trees, as described in a file.

    Each entry of the file is one transaction. The command first checks all entries: if one of them is refused, it does
    nothing, unless you give --skip-refused. If you run it again, it skips the entries that are already done.

    Exit status: 0 if all entries are done, 1 if none is, 2 if some are. With --dry-run: 0 if all can be done, else 1.
    """

    arguments = (
        argument(
            "file",
            type=Path,
            metavar="FILE",
            help="File with the reshapes, in YAML or JSON; see etc/moorage/reshape.yaml.sample",
        ),
        argument("--dry-run", action="store_true", help="Only show what would be done"),
        argument("--skip-refused", action="store_true", help="Skip refused entries and do the others"),
        argument("--again", action="store_true", help="Also do entries that seem to be done already"),
        argument(
            "--search-steps",
            type=int,
            default=DEFAULT_SEARCH_STEPS,
            metavar="N",
            help="Maximum number of search steps per host to find new places for allocations (default: %(default)s)",
        ),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the outcome of each entry, and return the exit status."""
        self._status = NOTHING_DONE
        try:
            super().run(parsed_args)
        except MalformedFile as malformed:
            for fault in malformed.faults:
                LOG.error("%s", fault.with_code)
        return self._status

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Plan all entries, then carry them out; return one row per entry, or with --dry-run one per change.

        :raises MalformedFile: with all faults of the file; nothing was called.
        :raises Unavailable: not every entry could be planned; nothing was done.
        """
        entries = reshape_file.read(parsed_args.file)
        planned = self._plan(entries, parsed_args)
        refused = any(outcome.state == REFUSED for outcome in planned)
        if parsed_args.dry_run:
            self._status = NOTHING_DONE if refused else ALL_DONE
            return _CHANGES, [row for outcome in planned for row in _changes(outcome)]
        # Nothing is carried out before all is planned: a file with a mistake is refused as a whole.
        if refused and not parsed_args.skip_refused:
            LOG.error("Nothing was done, because some entries were refused; --skip-refused does the others")
            return _OUTCOMES, [_outcome(outcome) for outcome in planned]
        outcomes = self._carry_out(planned, parsed_args)
        self._status = _status(outcomes)
        return _OUTCOMES, [_outcome(outcome) for outcome in outcomes]

    def _plan(self, entries: Sequence[Entry], given: argparse.Namespace) -> list[EntryOutcome]:
        with progress.bars() as bars:
            return [
                reshape_fleet.plan_entry(self.placement, entry, given.search_steps, again=given.again)
                for entry in bars.track(entries, description="looking")
            ]

    def _carry_out(self, planned: Sequence[EntryOutcome], given: argparse.Namespace) -> list[EntryOutcome]:
        """Return the outcome of each entry, in the order of the file."""
        accepted = [outcome for outcome in planned if outcome.state == PLANNED]
        done = reshape_fleet.carry_out(
            accepted,
            lambda outcome: self.change(reshape_fleet.request(outcome, given.search_steps)),
            skip_refused=given.skip_refused,
        )
        with progress.bars() as bars:
            results = iter(list(bars.track(done, description="reshaping", total=len(accepted))))
        return [next(results) if outcome.state == PLANNED else outcome for outcome in planned]


def _status(outcomes: Sequence[EntryOutcome]) -> int:
    states = {outcome.state for outcome in outcomes}
    if states <= {DONE, MOVED_BEFORE}:
        return ALL_DONE
    # A call without a reply may have been carried out.
    return SOME_DONE if states & {DONE, UNKNOWN} else NOTHING_DONE


# --- Rows of outcomes -----------------------------------------------------------------------------------------------

_OUTCOMES = ("line", "host", "state", "created", "allocations", "reason")


def _outcome(outcome: EntryOutcome) -> tuple[Any, ...]:
    # An entry that is still planned was not begun, because another one was refused.
    state = NOT_BEGUN if outcome.state == PLANNED else outcome.state
    created = sorted(outcome.plan.created.values()) if outcome.plan and state == DONE else None
    moved = len(outcome.plan.dealt) if outcome.plan and state == DONE else None
    return shown((outcome.entry.line, outcome.entry.host, state, created, moved, outcome.reason))


# --- Rows of planned changes ----------------------------------------------------------------------------------------


class PlannedChange(NamedTuple):
    """One change; fields that do not apply are null. Providers are given by name.

    ``before`` and ``after`` are, for an inventory, its fields; for a move, its source and target.
    """

    #: One of ``create`` (a provider), ``inventory`` and ``move`` (an allocation); else the state of the entry.
    change: str
    provider: str | None = None
    resource_class: str | None = None
    amount: int | None = None
    before: str | None = None
    after: str | None = None
    consumer: str | None = None


def _planned_changes(outcome: EntryOutcome, plan: ReshapePlan) -> Iterator[PlannedChange]:
    """Yield the providers to create, the inventories that change, and the allocations that move."""
    names = {known.uuid: known.name for known in outcome.before.values()} | plan.created
    parents = {child.name: child.parent for child in outcome.entry.reshape.providers}
    for name in plan.created.values():
        yield PlannedChange("create", name, after=f"child of {parents[name]}")
    yield from sorted(_inventories(outcome, plan, names))
    for part in plan.dealt:
        source, target = names[part.from_resource_provider], names[part.to_resource_provider]
        for class_name, amount in part.resources.items():
            yield PlannedChange("move", None, class_name, amount, source, target, part.consumer_uuid)


def _inventories(outcome: EntryOutcome, plan: ReshapePlan, names: dict[str, str]) -> Iterator[PlannedChange]:
    """Yield a change for each inventory that is a source or a target of a move."""
    before = {known.uuid: known.inventories for known in outcome.before.values()}
    uuids = {name: uuid for uuid, name in plan.created.items()}
    uuids |= {named: known.uuid for named, known in outcome.before.items()}
    touched = {
        (uuids.get(named, named), class_name)
        for move in outcome.entry.reshape.instructions
        for named in (move.from_resource_provider, move.to_resource_provider)
        for class_name in move.moved_resources
    }
    for uuid, class_name in touched:
        was, will_be = (described.get(uuid, {}).get(class_name) for described in (before, plan.inventories))
        yield PlannedChange("inventory", names[uuid], class_name, before=_described(was), after=_described(will_be))


def _described(inventory: Inventory | None) -> str | None:
    """Return the total of an inventory, and the fields that differ from their default."""
    if inventory is None:
        return None
    usual = asdict(Inventory(total=inventory.total))
    unusual = [f"{name}={value}" for name, value in asdict(inventory).items() if value != usual[name]]
    return ", ".join([str(inventory.total), *unusual])


_CHANGES = ("line", "host", *PlannedChange._fields)


def _changes(outcome: EntryOutcome) -> Iterator[tuple[Any, ...]]:
    place = (outcome.entry.line, outcome.entry.host)
    if outcome.plan is None:
        yield shown((*place, *PlannedChange(outcome.state, after=outcome.reason)))
        return
    for change in _planned_changes(outcome, outcome.plan):
        yield shown((*place, *change))
