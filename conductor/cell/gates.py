"""Judge attempts at the two gates of their cell; attempts that arrive together share one transaction."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection

from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.records import gates
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.gates import AtGate, AttemptAtGate, AttemptName, InstanceAtGate
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.engine.operations import Operations
from conductor.engine.steps import MOVE
from moorage import errors
from moorage.db.database import Database
from moorage.db.shared_transactions import SharedTransactions
from moorage.messages import AcceptInCell, BuildFinished
from moorage.model.states import InstanceState

M = TypeVar("M", AcceptInCell, BuildFinished)
R = TypeVar("R")

#: The states of an instance whose attempt may pass a gate.
_WANTED: tuple[InstanceState, ...] = ("building", "active", "moving", "moved", "unshelving", "rebuilding")
#: The states of an attempt that has not passed the second gate yet.
_UNDER_WAY = ("starting", "building")


class Gates:
    """Judges the messages of agents by the records of one cell, and records which attempts pass.

    A refusal is ``NotFound``, ``ClaimReleased`` or, at the first gate, ``RequestInProgress``; see :func:`_current` and
    :func:`_require_returned`.
    """

    def __init__(
        self, database: Database, records: CellRecords, sequences: AttemptSequences, operations: Operations
    ) -> None:
        self._records = records
        self._sequences = sequences
        self._operations = operations
        #: Return the attempt of a message if it may pass the first gate, according to the records, read without a lock.
        self.looks: Final = SharedTransactions[AcceptInCell, AttemptAtGate](database.read, self._look, "gates")
        #: Check an attempt again, with a lock, and record that it has passed the first gate.
        self.acceptances: Final = SharedTransactions[AcceptInCell, None](database.write, self._accept, "acceptances")
        #: Record that the guest of a build or an unshelving runs; change nothing and return False for a move.
        self.finishes: Final = SharedTransactions[BuildFinished, bool](database.write, self._finish, "finished builds")

    def locked(self, connection: Connection, message: BuildFinished) -> tuple[CellInstance, AttemptRecord]:
        """Lock the instance and the attempt of a message, and return their records; raises as the second gate."""
        name = _name(message)
        _current(message, gates.lock(connection, self._records.cell_uuid, [name]).get(name))
        instance = self._records.lock_known(connection, message.instance_uuid)
        return instance, self._records.by_ids(connection, [message.attempt_id])[message.attempt_id]

    # --- The transactions, for several messages each ------------------------------------------------------------------

    def _look(self, connection: Connection, messages: Sequence[AcceptInCell]) -> list[AttemptAtGate | Exception]:
        found = gates.look(connection, self._records.cell_uuid, [_name(message) for message in messages])

        def judge(message: AcceptInCell) -> AttemptAtGate:
            at_gate = found.get(_name(message))
            _instance, attempt = _current(message, at_gate)
            _require_returned(message, attempt, is_returning=at_gate is not None and at_gate.is_returning)
            return attempt

        return _apply_each(messages, judge)

    def _accept(self, connection: Connection, messages: Sequence[AcceptInCell]) -> list[Exception | None]:
        # Check again, under the lock: an order to delete may have arrived since.
        found = gates.lock(connection, self._records.cell_uuid, [_name(message) for message in messages])
        # Read the lives under the lock too. A list of guests without this guest was either compared before, or is
        # compared later, when the host is no longer in the life that the list names.
        attempts = [at_gate.attempt for at_gate in found.values() if at_gate.attempt is not None]
        hosts = {attempt.host for attempt in attempts if attempt.state in _UNDER_WAY}
        lives = self._records.lives.of_hosts(connection, hosts) if hosts else {}
        passing: set[str] = set()

        def judge(message: AcceptInCell) -> None:
            _instance, attempt = _current(message, found.get(_name(message)))
            is_returning = attempt.host in lives and lives[attempt.host].is_returning
            _require_returned(message, attempt, is_returning=is_returning)
            if attempt.state == "starting":
                passing.add(attempt.attempt_id)

        outcomes = _apply_each(messages, judge)
        if passing:
            self._records.change_attempts(connection, passing, state="building", accepted=True)
        return outcomes

    def _finish(self, connection: Connection, messages: Sequence[BuildFinished]) -> list[bool | Exception]:
        found = gates.lock(connection, self._records.cell_uuid, [_name(message) for message in messages])
        arrived: dict[str, AttemptAtGate] = {}
        kinds: dict[str, set[str]] = {}

        def judge(message: BuildFinished) -> bool:
            instance, attempt = _current(message, found.get(_name(message)))
            kind = self._sequences.kind(instance)
            # It was reported before: nothing changes.
            if attempt.state in ("active", "held") or kind is None:
                return True
            if kind == MOVE:
                return False
            arrived[attempt.attempt_id] = attempt
            kinds.setdefault(kind, set()).add(instance.uuid)
            return True

        outcomes = _apply_each(messages, judge)
        if arrived:
            self._sequences.record_arrivals(connection, arrived.values())
        for kind, uuids in kinds.items():
            self._operations.end_pending(connection, uuids, kind)
        return outcomes


# --- The rules --------------------------------------------------------------------------------------------------------


def _current(message: AcceptInCell | BuildFinished, found: AtGate | None) -> tuple[InstanceAtGate, AttemptAtGate]:
    """Return the instance and the attempt that a message is about.

    An attempt whose guest is being moved away passes both gates, as often as its host reports it again.

    :raises NotFound: the instance, or its attempt with this claim, is unknown here. This does not prove that the guest
        is unwanted: the record may have been lost, for instance by a restore from a backup.
    :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
    """
    if found is None:
        raise errors.InstanceNotFound(name=message.instance_uuid)
    instance, attempt = found.instance, found.attempt
    if attempt is None or attempt.claim_id != message.claim_id:
        # No guest of a deleted instance is wanted; the records of its attempts are pruned before its own.
        if instance.state not in ("deleting", "deleted"):
            raise errors.NotFound(kind="attempt with such a claim", name=message.attempt_id)
    elif _is_wanted(instance, attempt):
        return instance, attempt
    raise errors.ClaimReleased(consumer_uuid=message.instance_uuid, claim_id=message.claim_id)


def _is_wanted(instance: InstanceAtGate, attempt: AttemptAtGate) -> bool:
    if attempt.state == "held":
        return True
    is_current = instance.attempt_number == attempt.number and attempt.state in (*_UNDER_WAY, "active")
    # An instance in error may still have its guest, for instance after a failed rebuild: keep the guest.
    return is_current and (instance.state in _WANTED or attempt.state == "active")


def _require_returned(message: AcceptInCell, attempt: AttemptAtGate, *, is_returning: bool) -> None:
    """Refuse an attempt on a returning host: nothing may begin there until the host has listed its guests.

    :raises RequestInProgress: the host is returning.
    """
    if is_returning and attempt.state in _UNDER_WAY:
        raise errors.RequestInProgress(request_id=message.request_id)


def _name(message: AcceptInCell | BuildFinished) -> AttemptName:
    return AttemptName(message.instance_uuid, message.attempt_id)


def _apply_each(messages: Sequence[M], judge: Callable[[M], R]) -> list[R | Exception]:
    """Return the result of ``judge`` for each message, or the error that it has raised for that message."""
    outcomes: list[R | Exception] = []
    for message in messages:
        try:
            outcomes.append(judge(message))
        except errors.MoorageError as refusal:
            outcomes.append(refusal)
    return outcomes
