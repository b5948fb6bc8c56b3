"""Records of attempts. An attempt is one try to build, move or unshelve an instance on one host.

For the states and their order see :data:`moorage.model.states.AttemptState`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, bindparam, false, func, select

from conductor.cell.records.alike_changes import AlikeChanges
from conductor.cell.records.lives import HostLives, Life
from conductor.engine.rows import batches, encoded, grouped, of_row, text
from conductor.schema import cell_attempts
from moorage.db.forced_index import by_index
from moorage.db.new_rows import NewRows
from moorage.messages.compute import OrderOnHost
from moorage.model import AllocationRequest, Attempt, Selection
from moorage.model.states import AttemptState

G = TypeVar("G", bound=OrderOnHost)

#: The condition that a host may have a guest of an attempt; the host destroys it because of the attempt's record.
#: (MariaDB uses no index for `guest_gone IS false`.)
MAY_HAVE_A_GUEST = and_(cell_attempts.c.claim_id.is_not(None), cell_attempts.c.guest_gone == false())

#: The states of an attempt that can still pass a gate.
_NOT_ENDED = ("starting", "building", "active", "held")
#: The condition that an attempt has ended; see :attr:`AttemptRecord.ended`.
HAS_ENDED = cell_attempts.c.state.not_in(_NOT_ENDED)

# Built once: it takes SQLAlchemy longer to build a statement than to run it.
_all = select(cell_attempts).where(cell_attempts.c.cell_uuid == bindparam("cell")).order_by(cell_attempts.c.number)
_OF_INSTANCE = _all.where(cell_attempts.c.instance_uuid == bindparam("instance"))
_LAST = select(func.max(cell_attempts.c.number)).where(
    cell_attempts.c.cell_uuid == bindparam("cell"), cell_attempts.c.instance_uuid == bindparam("instance")
)
_OF_ID = _OF_INSTANCE.where(cell_attempts.c.attempt_id == bindparam("id"))
_OF_NUMBER = _OF_INSTANCE.where(cell_attempts.c.number == bindparam("number"))
_OF_CLAIM = _OF_INSTANCE.where(cell_attempts.c.claim_id == bindparam("claim"))
_OF_IDS = _all.where(cell_attempts.c.attempt_id.in_(bindparam("ids", expanding=True)))
_ON_HOSTS = _all.where(cell_attempts.c.host.in_(bindparam("hosts", expanding=True)), MAY_HAVE_A_GUEST)
_ENDED_ON_HOSTS = _ON_HOSTS.where(HAS_ENDED)
#: The statement for each column that the uuids may belong to. For many uuids MariaDB estimates the rows of a migration
#: by the average of the index, in which all builds count as one migration; then it would read all attempts of the cell.
_AMONG = {
    "instance_uuid": _all.where(cell_attempts.c.instance_uuid.in_(bindparam("uuids", expanding=True))),
    "migration_uuid": by_index(
        _all.where(cell_attempts.c.migration_uuid.in_(bindparam("uuids", expanding=True))),
        cell_attempts,
        "ix_cell_attempts_migration",
    ),
}

_NEW = NewRows(cell_attempts, created_at=0.0, updated_at=0.0)
_CHANGES = AlikeChanges(cell_attempts, cell_attempts.c.attempt_id)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """The record of an attempt."""

    attempt_id: str
    instance_uuid: str
    number: int
    host: str
    agent: str
    claim_id: str | None
    state: AttemptState
    reason: str | None
    guest_gone: bool
    #: The migration that the attempt belongs to; null for a build or an unshelving.
    migration_uuid: str | None
    encoded_selection: bytes | None
    #: The host has reported a failure that would happen on every host: no alternate is tried.
    no_other_host: bool
    #: The life of its host when the attempt was recorded; see :mod:`conductor.cell.records.lives`.
    host_life: int = 0
    #: It has passed the first gate; false also in records of earlier versions, which did not record it.
    accepted: bool = False

    @property
    def claim(self) -> str:
        """The uuid of the attempt's claim.

        :raises ValueError: the attempt was skipped, so it has no claim.
        """
        if self.claim_id is None:
            raise ValueError(f"attempt {self.attempt_id} was skipped")
        return self.claim_id

    @property
    def selection(self) -> Selection:
        """The host, and the allocation request that was claimed there.

        :raises ValueError: an earlier version did not keep it.
        """
        if self.encoded_selection is None:
            raise ValueError(f"what attempt {self.attempt_id} was claimed with is not on record")
        return msgspec.json.decode(self.encoded_selection, type=Selection)

    @property
    def claimed_with(self) -> dict[str, AllocationRequest]:
        """The allocation request, keyed by the claim; empty without a claim, or if an old version did not keep it."""
        if self.claim_id is None or self.encoded_selection is None:
            return {}
        return {self.claim_id: self.selection.allocation_request}

    @property
    def may_have_a_guest(self) -> bool:
        """True if the host may have a guest: one may have been started, and is not known to be gone."""
        return self.claim_id is not None and not self.guest_gone

    @property
    def ended(self) -> bool:
        """True if the attempt cannot pass a gate any more. A host destroys a guest only because of such a record."""
        return self.state not in _NOT_ENDED

    def order(self, kind: type[G], request_id: str, number: int | None, **content: Any) -> G:
        """Return an order to its guest.

        :param number: the number of the order among all orders to guests of the instance.
        """
        return kind(
            request_id=request_id,
            host=self.host,
            instance_uuid=self.instance_uuid,
            attempt_id=self.attempt_id,
            claim_id=self.claim,
            order_number=number,
            **content,
        )


class AttemptRecords:
    """Reads and writes the attempts of one cell; each method is a part of the caller's transaction."""

    def __init__(self, cell_uuid: str) -> None:
        self.cell_uuid = cell_uuid
        #: The current lives, to compare with the life that an attempt or a message names.
        self.lives = HostLives(cell_uuid)

    def attempts(self, connection: Connection, instance_uuid: str) -> list[AttemptRecord]:
        """Return all attempts of an instance in the order they were made."""
        return self._attempts(connection, _OF_INSTANCE, instance=instance_uuid)

    def attempts_of(self, connection: Connection, instance_uuids: Collection[str]) -> dict[str, list[AttemptRecord]]:
        """Return all attempts of these instances, keyed by instance, in the order they were made."""
        found = self._attempts(connection, _AMONG["instance_uuid"], uuids=list(instance_uuids))
        return grouped((attempt.instance_uuid, attempt) for attempt in found)

    def attempts_shown(
        self, connection: Connection, column: str, uuids: Collection[str]
    ) -> dict[str, tuple[Attempt, ...]]:
        """Return attempts as they are shown to an operator, in the order they were made.

        :param column: the column of the uuids and of the result's keys: that of the instance or of the migration.
        """
        found: dict[str, list[Attempt]] = {}
        for row in connection.execute(_AMONG[column], {"cell": self.cell_uuid, "uuids": list(uuids)}):
            guest_left = row.claim_id is not None and not row.guest_gone
            shown = of_row(Attempt, row, reason=text(row.reason), guest_left=guest_left)
            found.setdefault(getattr(row, column), []).append(shown)
        return {uuid: tuple(attempts) for uuid, attempts in found.items()}

    def attempt(self, connection: Connection, instance_uuid: str, attempt_id: str) -> AttemptRecord | None:
        """Return one attempt of an instance, or None if the instance has no attempt with this id."""
        found = self._attempts(connection, _OF_ID, instance=instance_uuid, id=attempt_id)
        return found[0] if found else None

    def has_claim(self, connection: Connection, instance_uuid: str, claim_id: str) -> bool:
        """Return whether an attempt of an instance was made with a claim: the cell has taken the claim over before."""
        return bool(self._attempts(connection, _OF_CLAIM, instance=instance_uuid, claim=claim_id))

    def on_hosts(self, connection: Connection, hosts: Sequence[str], *, ended: bool = False) -> list[AttemptRecord]:
        """Return the attempts whose guests may be on these hosts; with ``ended`` only those that have ended."""
        query = _ENDED_ON_HOSTS if ended else _ON_HOSTS
        return [attempt for names in batches(hosts) for attempt in self._attempts(connection, query, hosts=names)]

    def by_ids(self, connection: Connection, attempt_ids: Sequence[str]) -> dict[str, AttemptRecord]:
        """Return the attempts with these ids, keyed by id; an unknown id is left out."""
        return {
            attempt.attempt_id: attempt
            for ids in batches(attempt_ids)
            for attempt in self._attempts(connection, _OF_IDS, ids=ids)
        }

    def numbered(self, connection: Connection, instance_uuid: str, number: int) -> AttemptRecord:
        """Return an attempt by its number; it must be on record."""
        [attempt] = self._attempts(connection, _OF_NUMBER, instance=instance_uuid, number=number)
        return attempt

    def next_number(self, connection: Connection, instance_uuid: str) -> int:
        """Return the number of an instance's next attempt; numbers continue through all its builds and moves."""
        # One entry of an index: an instance may have been moved thousands of times.
        last: int | None = connection.scalar(_LAST, {"cell": self.cell_uuid, "instance": instance_uuid})
        return (last or 0) + 1

    def add_attempt(
        self,
        connection: Connection,
        instance_uuid: str,
        selection: Selection,
        *,
        attempt_id: str,
        number: int,
        claim_id: str | None = None,
        skipped: str | None = None,
        migration_uuid: str | None = None,
    ) -> None:
        """Insert an attempt on a claimed host, or on a host that was skipped.

        :param skipped: the reason why the host was skipped.
        """
        row = attempt_row(instance_uuid, selection, attempt_id, number, claim_id) | {
            "reason": None if skipped is None else skipped.encode(),
            "migration_uuid": migration_uuid,
        }
        state: AttemptState = "starting" if skipped is None else "skipped"
        self._insert_attempts(connection, [row], state=state, guest_gone=skipped is not None)

    def change_attempt(
        self, connection: Connection, attempt_id: str, *, state: AttemptState | None = None, **values: Any
    ) -> None:
        """Update columns of an attempt; without a state it keeps its own."""
        self.change_attempts(connection, [attempt_id], state=state, **values)

    def change_attempts(
        self, connection: Connection, attempt_ids: Collection[str], *, state: AttemptState | None = None, **values: Any
    ) -> None:
        """Update the same columns of several attempts; without a state each keeps its own."""
        if state is not None:
            values["state"] = state
        _CHANGES.execute(connection, self.cell_uuid, attempt_ids, encoded(values))

    def _attempts(self, connection: Connection, query: Select[Any], **values: Any) -> list[AttemptRecord]:
        return [_attempt(row) for row in connection.execute(query, {"cell": self.cell_uuid, **values})]

    def _insert_attempts(
        self, connection: Connection, rows: Sequence[dict[str, Any]], *, state: AttemptState, **same: Any
    ) -> dict[str, Life]:
        """Insert attempts, each with the current life of its host; return these lives by host."""
        lives = self.lives.of_hosts(connection, {row["host"] for row in rows})
        numbered = [row | {"host_life": lives[row["host"]].number if row["host"] in lives else 0} for row in rows]
        _NEW.insert(connection, numbered, cell_uuid=self.cell_uuid, state=state, **same)
        return lives

    def _in(self, table: Table) -> ColumnElement[bool]:
        return table.c.cell_uuid == self.cell_uuid


def _attempt(row: Row[Any]) -> AttemptRecord:
    return of_row(
        AttemptRecord,
        row,
        reason=text(row.reason),
        encoded_selection=row.selection,
        host_life=row.host_life or 0,
        accepted=bool(row.accepted),
    )


def attempt_row(
    instance_uuid: str, selection: Selection, attempt_id: str, number: int, claim_id: str | None
) -> dict[str, Any]:
    """Return the values of a new attempt's columns."""
    return {
        "attempt_id": attempt_id,
        "instance_uuid": instance_uuid,
        "number": number,
        "host": selection.service_host,
        "agent": selection.agent,
        "claim_id": claim_id,
        "selection": msgspec.json.encode(selection),
    }
