"""Collection of a cloud's state for an audit: every part is queried, and parts without an answer are recorded."""

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from msgspec import structs
from oslo_config import cfg

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.audit.findings import CloudState, RecordsCompared, claimed_for_others, unanswered, unexplained_residues
from moorage.cli.clients import Clients
from moorage.cli.services import to_call
from moorage.messages import (
    AuditStore,
    CompareView,
    ListCells,
    ListHoldsInCell,
    ListHosts,
    ListInstances,
    ListResourceClasses,
    ListServices,
    ListStrangersInCell,
    OwnsClaim,
)
from moorage.model import Cell, Flavor, HostState, Instance, InstanceHolds
from moorage.model.inspection import Holder, StoreAudit, UnknownGuest, ViewDrift

T = TypeVar("T")

#: The most holders or instances of one answer: about a megabyte, and a fraction of a second of database time.
_AT_ONCE = 2_500
_RECORDS_AT_ONCE = 1_000
#: The size of an instance whose size is not kept.
_ANY_SIZE = Flavor(vcpus=1, memory_mb=1)


class AuditCollector:
    """Collects the state of a cloud once."""

    def __init__(self, conf: cfg.ConfigOpts, clients: Clients) -> None:
        self._silent_after: float = conf.service.silent_after
        self._clients = clients
        self._unseen: dict[str, str] = {}

    def collect(self) -> CloudState:
        """Query every part, the store first: the owner of each of its consumers had recorded it before."""
        placement = self._clients.topic("placement")
        store = self._ask("the store", self._store)
        classes = None
        if store is not None:
            classes = self._ask("the resource classes", lambda: placement.call(ListResourceClasses()))
        cells = self._ask("the cells", lambda: placement.call(ListCells(without_databases=True))) or []
        instances = self._instances({cell.uuid: cell.name for cell in cells})
        hosts = self._ask("the hosts", lambda: lists.hosts(self._clients.topic("scheduler"), ListHosts()))
        recorded = self._recorded(store, classes, cells, hosts or ())
        unknown_guests = [unknown for cell in cells for unknown in self._unknown_guests(cell)]
        drift = self._drift()
        all_recorded = "the cells" not in self._unseen and len(recorded) == len(cells)
        return CloudState(
            store=store,
            classes=classes,
            instances=instances,
            unwanted=self._unwanted(() if store is None else claimed_for_others(store.holders)),
            recorded=recorded,
            all_recorded=all_recorded,
            hosts=hosts,
            unknown_guests=unknown_guests,
            drift=drift,
            unseen=self._unseen,
        )

    def _ask(self, part: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except errors.MoorageError as fault:
            self._unseen[part] = str(fault)
            return None

    def _store(self) -> StoreAudit:
        """Query the store in parts, and return the whole.

        The parts are read at different times. Nevertheless, each consumer that holds something during the whole query
        is in exactly one of them: they are ordered by the consumers' numbers, which do not change, and new consumers
        have greater numbers. All parts are read before the owners' records, as :meth:`collect` requires.
        """
        placement = self._clients.topic("placement")
        first = part = placement.call(AuditStore(limit=_AT_ONCE, amounts=True))
        holders, roots = [_shared(holder) for holder in part.holders], dict(part.roots)
        while part.more_after is not None:
            part = placement.call(AuditStore(limit=_AT_ONCE, after=part.more_after, amounts=True))
            holders += [_shared(holder) for holder in part.holders]
            roots |= part.roots
        return structs.replace(first, holders=tuple(holders), roots=roots, more_after=None)

    def _recorded(
        self,
        store: StoreAudit | None,
        classes: Collection[str] | None,
        cells: Sequence[Cell],
        hosts: Sequence[HostState],
    ) -> dict[str, Sequence[InstanceHolds]]:
        """Query each cell for its records, in parts; return them by cell.

        What an instance should hold is most of its record. It is kept only where it contradicts the store: a large
        cloud has hundreds of thousands of instances.
        """
        compared = None if store is None else RecordsCompared(store, classes, hosts)

        def needed(instance: InstanceHolds) -> InstanceHolds:
            agrees = compared is not None and next(compared.findings(instance), None) is None
            return structs.replace(instance, holds=()) if agrees else instance

        found: dict[str, list[InstanceHolds]] = {}
        for cell in cells:
            answer = self._ask(f"records of {cell.name}", partial(self._of_cell, cell, needed))
            if answer is not None:
                found[cell.uuid] = answer
        if store is not None and len(found) == len(cells):
            # There may be many deleted instances: read only those to which an unexplained residue may belong.
            known = [instance for of_cell in found.values() for instance in of_cell]
            unexplained = sorted(unexplained_residues(store, known))
            for cell in cells:
                more = self._ask(f"records of {cell.name}", partial(owning, self._clients, cell, unexplained))
                if more is None:
                    del found[cell.uuid]
                else:
                    found[cell.uuid] += more
        return dict(found)

    def _of_cell(self, cell: Cell, needed: Callable[[InstanceHolds], InstanceHolds]) -> list[InstanceHolds]:
        client = self._clients.cell(cell)
        part = client.call(ListHoldsInCell(limit=_RECORDS_AT_ONCE))
        found = [needed(instance) for instance in part.instances]
        while part.more_after is not None:
            part = client.call(ListHoldsInCell(limit=_RECORDS_AT_ONCE, after=part.more_after))
            found += [needed(instance) for instance in part.instances]
        return found

    def _instances(self, cells: dict[str, str]) -> list[Instance] | None:
        conductor = self._clients.topic("conductor")
        instances = self._ask(
            "the instances", lambda: [_needed(one) for one in lists.each_instance(conductor, ListInstances())]
        )
        for uuid in unanswered(instances or ()):
            self._unseen[f"instances of {cells.get(uuid, uuid)}"] = "the cell has not answered the super conductor"
        return instances

    def _unwanted(self, holders: Sequence[Holder]) -> dict[str, str]:
        """Query the owners of claims; return the unwanted or unknown claims, each with its owner's answer."""
        found: dict[str, str] = {}
        by_owner: dict[str, list[Holder]] = {}
        for holder in holders:
            by_owner.setdefault(str(holder.owner), []).append(holder)
        for owner, claims in sorted(by_owner.items()):
            # Wait only once for an owner that does not answer, and not once for each of its claims.
            self._ask(f"claims of {owner}", partial(self._refused_by, owner, claims, found))
        return found

    def _refused_by(self, owner: str, holders: Sequence[Holder], found: dict[str, str]) -> None:
        client = self._clients.topic(owner)
        for holder in holders:
            consumer, claim = str(holder.uuid), str(holder.claim_id)
            try:
                answer = client.call(OwnsClaim(request_id=ids.fresh(), consumer_uuid=consumer, claim_id=claim))
            except errors.NotFound as fault:
                found[claim] = f"{owner} does not know it: {fault}"
            else:
                if not answer.owned:
                    found[claim] = f"{owner} does not want it"

    def _unknown_guests(self, cell: Cell) -> list[UnknownGuest]:
        # Query the cell itself: the super conductor's answer does not name the cells that are missing in it.
        found = self._ask(
            f"guests of {cell.name}", lambda: lists.unknown_guests(self._clients.cell(cell), ListStrangersInCell())
        )
        return found or []

    def _drift(self) -> dict[str, ViewDrift]:
        services = self._ask("the services", lambda: self._clients.topic("placement").call(ListServices())) or []
        names = to_call(services, "scheduler", self._silent_after)
        if not names:
            # No scheduler has reported yet: query any of them.
            drift = self._ask("the host view", lambda: self._clients.topic("scheduler").call(CompareView()))
            return {} if drift is None else {"any": drift}
        answers = {name: self._view(name) for name in names}
        return {name: drift for name, drift in answers.items() if drift is not None}

    def _view(self, name: str) -> ViewDrift | None:
        return self._ask(f"the view of {name}", lambda: self._clients.topic("scheduler", name).call(CompareView()))


def _shared(holder: Holder) -> Holder:
    """Return a holder whose providers' uuids are the same objects as those of other holders, to save memory."""
    return structs.replace(
        holder,
        root_provider_uuids=tuple(map(sys.intern, holder.root_provider_uuids)),
        placed_on=_interned(holder.placed_on),
        held={sys.intern(uuid): amounts for uuid, amounts in holder.held.items()},
    )


def _interned(text: str | None) -> str | None:
    return None if text is None else sys.intern(text)


def _needed(instance: Instance) -> Instance:
    """Return an instance without what no finding depends on, to save memory."""
    attempts = tuple(structs.replace(attempt, reason=None) for attempt in instance.attempts)
    return structs.replace(
        instance,
        name=None,
        project_id="",
        user_id="",
        flavor=_ANY_SIZE,
        cell_uuid=_interned(instance.cell_uuid),
        cell=_interned(instance.cell),
        host=None,
        claim_id=None,
        reason=None,
        explanation=None,
        request_id=None,
        attached={},
        attempts=attempts,
    )


def owning(clients: Clients, cell: Cell, uuids: Sequence[str]) -> list[InstanceHolds]:
    """Return a cell's records of these instances, attempts and migrations, including deleted ones.

    :raises MoorageError: the cell does not answer.
    """
    client = clients.cell(cell)
    found: list[InstanceHolds] = []
    for start in range(0, len(uuids), _RECORDS_AT_ONCE):
        found += client.call(ListHoldsInCell(uuids=tuple(uuids[start : start + _RECORDS_AT_ONCE]))).instances
    return found
