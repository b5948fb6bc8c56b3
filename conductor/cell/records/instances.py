"""Records of a cell's instances, in addition to the records of their attempts.

For the states and their order see :data:`moorage.model.states.InstanceState`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, exc, select

from conductor.cell.attached_groups import provider_of
from conductor.cell.records.alike_changes import AlikeChanges
from conductor.cell.records.attempts import HAS_ENDED, MAY_HAVE_A_GUEST, AttemptRecord, AttemptRecords, attempt_row
from conductor.engine.preconditions import advice
from conductor.engine.rows import SPECS_AT_ONCE, ShownSpec, batches, document, encoded, of_row, text
from conductor.engine.steps import Superseded
from conductor.schema import cell_attempts, cell_instances, cell_migrations
from moorage import errors
from moorage.db.forced_index import by_index
from moorage.db.new_rows import NewRows
from moorage.messages import InstanceBuild
from moorage.model import AttachedResource, Attempt, Flavor, Instance, RequestSpec, Selection
from moorage.model.states import InstanceState

#: The most instances that are looked at for a page, as a multiple of its length. Arbitrary.
_LOOKED_AT = 10
#: Shown if the order to delete an instance came before the order to build it. The super conductor has the real spec.
_UNKNOWN_SPEC = RequestSpec(project_id="unknown", user_id="unknown", flavor=Flavor(vcpus=1, memory_mb=1))


# Built once: it takes SQLAlchemy longer to build a statement than to run it.
_THESE = (
    cell_instances.c.cell_uuid == bindparam("cell_uuid"),
    cell_instances.c.uuid.in_(bindparam("uuids", expanding=True)),
)
_KNOWN = select(cell_instances.c.uuid).where(*_THESE)
_SHOWN = select(cell_instances).where(*_THESE)
_ONE = select(cell_instances).where(
    cell_instances.c.cell_uuid == bindparam("cell_uuid"), cell_instances.c.uuid == bindparam("of_uuid")
)
_LOCK_ONE = _ONE.with_for_update()
_NEW = NewRows(cell_instances, created_at=0.0, updated_at=0.0)
_CHANGES = AlikeChanges(cell_instances, cell_instances.c.uuid)


@dataclass(frozen=True, slots=True)
class CellInstance:
    """The record of an instance; ``attempt_number`` is the number of the current attempt."""

    uuid: str
    state: InstanceState
    spec: RequestSpec
    selections: tuple[Selection, ...]
    #: The number of the attempt on the first selection.
    first_number: int
    attempt_number: int
    claim_id: str | None
    #: The migration that is in progress, or waits to be confirmed or reverted.
    migration_uuid: str | None
    #: The suffixes of the request's groups that were attached after the build.
    attached: tuple[str, ...]
    #: The numbers of the last order that was carried out, the greatest refused order, and the last order to a guest.
    order_number: int
    refused_order_number: int
    guest_order_number: int

    @property
    def guest_order(self) -> int | None:
        """The number of the last order to a guest; null in records of earlier versions, which did not count them."""
        return self.guest_order_number or None

    def require(self, *states: InstanceState) -> None:
        """Refuse an order unless the instance is in one of these states, with advice on what to do first.

        :raises InvalidState: it is in another state.
        """
        if self.state not in states:
            needed = " or ".join(states)
            first = advice(self.state, self.migration_uuid)
            raise errors.InvalidState(reason=f"instance {self.uuid} is {self.state}; it has to be {needed}{first}")


class NewInstance(NamedTuple):
    """An instance to be built, with the id of its first attempt."""

    attempt_id: str
    build: InstanceBuild
    request_id: str


class InstancePart(NamedTuple):
    """The uuids of some instances; after a uuid, there may be more."""

    uuids: Sequence[str]
    more_after: str | None


class CellRecords(AttemptRecords):
    """Reads and writes the instances of one cell; each method is a part of the caller's transaction."""

    def known(self, connection: Connection, uuids: Collection[str]) -> set[str]:
        """Return the uuids that have a record, including those of deleted instances."""
        return set(connection.scalars(_KNOWN, {"cell_uuid": self.cell_uuid, "uuids": list(uuids)}))

    def add(self, connection: Connection, new: Collection[NewInstance]) -> set[str]:
        """Insert instances, each with its first attempt on the host that is claimed for it.

        :return: the names of those hosts that are returning.
        :raises RequestInProgress: another transaction has just recorded one of them.
        """
        if not new:
            return set()
        instances, attempts = [], []
        for attempt_id, build, request_id in new:
            first = build.selections[0]
            stored = {name: msgspec.json.encode(getattr(build, name)) for name in ("request_spec", "selections")}
            place = {"host": first.service_host, "claim_id": first.claim_id}
            instances.append({"uuid": build.instance_uuid, "request_id": request_id, **place, **stored})
            attempts.append(attempt_row(build.instance_uuid, first, attempt_id, 1, first.claim_id))
        self._insert_instances(connection, instances, state="building", attempt_number=1)
        lives = self._insert_attempts(connection, attempts, state="starting", guest_gone=False)
        return {host for host, life in lives.items() if life.is_returning}

    def add_deleting(self, connection: Connection, uuid: str, request_id: str) -> None:
        """Insert an instance that is being deleted. When the order to build it arrives later, it changes nothing.

        :raises RequestInProgress: another transaction has just recorded it.
        """
        row = {"uuid": uuid, "request_id": request_id}
        self._insert_instances(connection, [row], state="deleting", attempt_number=0)

    def lock(self, connection: Connection, uuid: str) -> CellInstance | None:
        """Lock an instance and return it. Every transaction about an instance begins with this lock."""
        row = connection.execute(_LOCK_ONE, self._one(uuid)).one_or_none()
        return None if row is None else _instance(row)

    def lock_known(self, connection: Connection, uuid: str) -> CellInstance:
        """Lock an instance and return it.

        :raises InstanceNotFound: it is unknown here.
        """
        instance = self.lock(connection, uuid)
        if instance is None:
            raise errors.InstanceNotFound(name=uuid)
        return instance

    def read(self, connection: Connection, uuid: str) -> CellInstance | None:
        """Return an instance without locking it."""
        row = connection.execute(_ONE, self._one(uuid)).one_or_none()
        return None if row is None else _instance(row)

    def reasons(self, connection: Connection, uuids: Sequence[str]) -> dict[str, str | None]:
        """Return the reasons of instances, keyed by uuid."""
        query = select(cell_instances.c.uuid, cell_instances.c.reason).where(self._in(cell_instances))
        return {
            row.uuid: text(row.reason)
            for part in batches(uuids)
            for row in connection.execute(query.where(cell_instances.c.uuid.in_(part)))
        }

    def expect(self, connection: Connection, uuid: str, *states: InstanceState, lock: bool = False) -> CellInstance:
        """Return the instance of an operation; it is in one of these states until the operation ends.

        :raises Superseded: it is in another state: an order to delete it has ended the operation.
        """
        instance = (self.lock if lock else self.read)(connection, uuid)
        if instance is None or instance.state not in states:
            raise Superseded
        return instance

    def current(self, connection: Connection, instance: CellInstance) -> AttemptRecord:
        """Return the current attempt of an instance; it must have one."""
        return self.numbered(connection, instance.uuid, instance.attempt_number)

    def part(self, connection: Connection, after: str | None, limit: int) -> InstancePart:
        """Return a page of instances in the order of their uuids; it may be shorter than the limit, even empty.

        A deleted instance is left out, unless a host may still have a guest of it.
        """
        # All attempts of a deleted instance have ended. Those that may have left a guest are few.
        attempts = by_index(select(cell_attempts.c.instance_uuid), cell_attempts, "ix_cell_attempts_guest")
        left = set(connection.scalars(attempts.where(self._in(cell_attempts), MAY_HAVE_A_GUEST, HAS_ENDED)))
        found: list[str] = []
        # Nearly all instances may be deleted: bound the rows that are read, not those that are found.
        for _ in range(_LOOKED_AT):
            query = select(cell_instances.c.uuid, cell_instances.c.state).where(self._in(cell_instances))
            if after is not None:
                query = query.where(cell_instances.c.uuid > after)
            rows = connection.execute(query.order_by(cell_instances.c.uuid).limit(limit)).all()
            found += [row.uuid for row in rows if row.state != "deleted" or row.uuid in left]
            if len(found) >= limit:
                return InstancePart(found[:limit], found[limit - 1])
            if len(rows) < limit:
                return InstancePart(found, None)
            after = rows[-1].uuid
        return InstancePart(found, after)

    def owners(self, connection: Connection, uuids: Collection[str]) -> list[str]:
        """Return the uuids, among these and of the owners of these attempts and migrations, in their order."""
        attempts, migrations = cell_attempts, cell_migrations
        owners = set(uuids)
        for query in (
            select(attempts.c.instance_uuid).where(self._in(attempts), attempts.c.attempt_id.in_(uuids)),
            select(migrations.c.instance_uuid).where(self._in(migrations), migrations.c.uuid.in_(uuids)),
        ):
            owners.update(connection.scalars(query))
        return sorted(owners)

    def read_parts(self, connection: Connection, uuids: Sequence[str]) -> Iterator[list[CellInstance]]:
        """Yield instances, including deleted ones, in parts: each has its request; an unknown one is left out."""
        for part in batches(uuids, SPECS_AT_ONCE):
            rows = connection.execute(_SHOWN, {"cell_uuid": self.cell_uuid, "uuids": part})
            yield sorted(map(_instance, rows), key=lambda instance: instance.uuid)

    def active_attempt(self, connection: Connection, instance: CellInstance) -> AttemptRecord:
        """Return the current attempt of an instance, whose guest is on its host.

        :raises InvalidState: the instance is on no host, or an earlier version did not keep the attempt's selection.
        """
        current = None if instance.claim_id is None else self.current(connection, instance)
        if current is None or current.state != "active":
            raise errors.InvalidState(reason=f"instance {instance.uuid} is {instance.state}, and on no host")
        if current.encoded_selection is None:
            raise errors.InvalidState(reason=f"it is not on record what instance {instance.uuid} was claimed with")
        return current

    def change(self, connection: Connection, uuid: str, *, state: InstanceState | None = None, **values: Any) -> None:
        """Update columns of an instance; without a state it keeps its own."""
        self.change_instances(connection, [uuid], state=state, **values)

    def change_instances(
        self, connection: Connection, uuids: Collection[str], *, state: InstanceState | None = None, **values: Any
    ) -> None:
        """Update the same columns of several instances; without a state each keeps its own."""
        if state is not None:
            values["state"] = state
        _CHANGES.execute(connection, self.cell_uuid, uuids, encoded(values))

    def show(self, connection: Connection, uuids: Collection[str], *, with_request: bool = False) -> list[Instance]:
        """Return instances as they are shown to an operator, each with all its attempts; an unknown one is left out."""
        attempts = self.attempts_shown(connection, "instance_uuid", uuids)
        # A few requests are in memory at a time.
        return [
            self._shown(connection, row, attempts.get(row.uuid, ()), with_request=with_request)
            for part in batches(sorted(uuids), SPECS_AT_ONCE)
            for row in connection.execute(_SHOWN, {"cell_uuid": self.cell_uuid, "uuids": part})
        ]

    def _shown(
        self, connection: Connection, row: Row[Any], attempts: Sequence[Attempt], *, with_request: bool
    ) -> Instance:
        attached = self._attached_shown(connection, row) if row.attached else {}
        # Null also if the order to delete the instance came first.
        request = document(row.request_spec, RequestSpec) if with_request else None
        spec = request or document(row.request_spec, ShownSpec) or _UNKNOWN_SPEC
        return of_row(
            Instance,
            row,
            project_id=spec.project_id,
            user_id=spec.user_id,
            flavor=spec.flavor,
            reason=text(row.reason),
            attempts=tuple(attempts),
            attached=attached,
            request_spec=request,
        )

    def _one(self, uuid: str) -> dict[str, str]:
        return {"cell_uuid": self.cell_uuid, "of_uuid": uuid}

    def _insert_instances(
        self, connection: Connection, rows: Sequence[dict[str, Any]], *, state: InstanceState, attempt_number: int
    ) -> None:
        try:
            _NEW.insert(connection, rows, cell_uuid=self.cell_uuid, state=state, attempt_number=attempt_number)
        except exc.IntegrityError as fault:
            raise errors.RequestInProgress(request_id=rows[0]["request_id"]) from fault

    def _attached_shown(self, connection: Connection, row: Row[Any]) -> dict[str, AttachedResource]:
        suffixes = _attached(row)
        if not suffixes or row.state == "deleted":
            return {}
        spec = _spec(row)
        on_host = None if row.claim_id is None else self.numbered(connection, row.uuid, row.attempt_number).selection
        return {
            suffix: AttachedResource(
                resources=spec.groups[suffix].resources,
                provider_uuid=None if on_host is None else provider_of(on_host.allocation_request, suffix),
            )
            for suffix in suffixes
        }


def _spec(row: Row[Any]) -> RequestSpec:
    return document(row.request_spec, RequestSpec) or _UNKNOWN_SPEC


def _instance(row: Row[Any]) -> CellInstance:
    selections = document(row.selections, tuple[Selection, ...]) or ()
    return of_row(CellInstance, row, spec=_spec(row), selections=selections, attached=_attached(row))


def _attached(row: Row[Any]) -> tuple[str, ...]:
    return document(row.attached, tuple[str, ...]) or ()
