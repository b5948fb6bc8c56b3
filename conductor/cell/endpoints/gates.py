"""The endpoint with the two gates of an attempt, and for the report that it has failed.

A host starts a guest only after `accept_claim`, the first gate. A running guest counts only if its attempt is still the
current one at `build_finished`, the second gate.
"""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import Fate
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.end_move import CellMoveEnds
from conductor.engine.steps import Ended, Operation
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import AcceptClaim, AcceptInCell, BuildFailedInCell, BuildFinished, Done
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)

#: The states of an instance whose attempt may pass a gate.
_WANTED: tuple[InstanceState, ...] = ("building", "active", "moving", "moved", "unshelving", "rebuilding")


class CellGates(CellPart):
    """Serves the reports of agents about attempts. Each answer holds for the moment, so the requests are not stored."""

    @serves(AcceptInCell)
    def accept_claim(self, message: AcceptInCell) -> Done:
        """Let the current attempt start on its host, once the store has recorded that the claim is accepted.

        :raises RequestInProgress: the host is returning: nothing may begin there until it has listed its guests.
        :raises InstanceNotFound: the instance is unknown here.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """

        # Checked first here, without a lock, so that the store is called only for an attempt that may pass.
        def looked_up(connection: Connection) -> AttemptRecord:
            _instance, attempt = self._current(connection, message, lock=False)
            self._require_returned(connection, message, attempt)
            return attempt

        found = self._cell.database.read(looked_up)
        if found.state == "held":
            return Done()  # the claim has been accepted before, and the guest is only being moved
        # The store refuses a claim that was released. Once it is accepted, it is not released as an unaccepted one.
        self._cell.placement_client.call(
            AcceptClaim(
                request_id=message.request_id,
                consumer_uuid=message.instance_uuid,
                claim_id=message.claim_id,
                attempt_id=message.attempt_id,
                host=message.host,
            )
        )

        def work(connection: Connection) -> Done:
            # Checked again, under the lock: an order to delete may have come since.
            _instance, attempt = self._current(connection, message, lock=True)
            # Under the lock too. A list of guests without this one has either been compared already; or it is compared
            # later, when the host is no longer in the life that the list names.
            self._require_returned(connection, message, attempt)
            if attempt.state == "starting":
                self._cell.records.change_attempt(connection, attempt.attempt_id, state="building", accepted=True)
            return Done()

        return self._cell.database.write(work)

    @serves(BuildFinished)
    def build_finished(self, message: BuildFinished) -> Done:
        """Record that the guest of the current attempt runs: a build ends here, and a move has arrived.

        :raises InstanceNotFound: the instance is unknown here.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """

        def work(connection: Connection) -> Operation | None:
            instance, attempt = self._current(connection, message, lock=True)
            kind = self._cell.sequences.kind(instance)
            # Reported before: nothing changes.
            if attempt.state in ("active", "held") or kind is None:
                return None
            confirmed = self._cell.sequences.record_arrival(connection, instance, attempt)
            pending = self._cell.operations.pending(connection, instance.uuid, kind)
            if pending is not None:
                self._cell.operations.redirect(connection, pending, Ended())
            # A live migration and an evacuation confirm themselves, with an operation of their own.
            if confirmed is None:
                return None
            return CellMoveEnds(self._cell).begin_confirming(connection, confirmed, attempt)

        self._cell.worker.take_up(self._cell.database.write(work))
        return Done()

    @serves(BuildFailedInCell)
    def build_failed(self, message: BuildFailedInCell) -> Done:
        """Record that an attempt has failed and left no guest; if it is the current one, go on with the next host."""

        def work(connection: Connection) -> Operation | None:
            instance = self._cell.records.lock(connection, message.instance_uuid)
            attempt = self._cell.records.attempt(connection, message.instance_uuid, message.attempt_id)
            if instance is None or attempt is None or attempt.claim_id != message.claim_id:
                LOG.warning("A failure is reported of attempt %s, which is not known here", message.attempt_id)
                return None
            if attempt.state in ("active", "held"):
                LOG.warning("A failure is reported of attempt %s, whose guest runs", message.attempt_id)
                return None
            if attempt.state in ("starting", "building"):
                self._cell.records.change_attempt(
                    connection,
                    attempt.attempt_id,
                    state="failed",
                    reason=message.reason,
                    no_other_host=bool(message.no_other_host),
                )
            if not self._is_of_this_life(connection, message, attempt):
                # Sent in an earlier life of the host: in the present one the guest may be spawning.
                return self._fall_back(connection, instance, attempt, message.reason, "unknown")
            # A cleanup of this attempt may be waiting for just this report; else the operation falls back.
            cleanup = CellCleanups(self._cell).gone(connection, attempt)
            return cleanup or self._fall_back(connection, instance, attempt, message.reason, "gone")

        self._cell.worker.take_up(self._cell.database.write(work))
        return Done()

    def _fall_back(
        self, connection: Connection, instance: CellInstance, attempt: AttemptRecord, reason: str, fate: Fate
    ) -> Operation | None:
        kind = self._cell.sequences.kind(instance)
        if kind is None or instance.attempt_number != attempt.number or attempt.state == "failed":
            return None
        pending = self._cell.operations.pending(connection, instance.uuid, kind)
        # A pending swap is not disturbed, because its request may have been sent. It reads this report afterwards.
        if pending is None or pending.step not in ("start", "wait"):
            return None
        following = self._cell.sequences.next_step(connection, instance, attempt.number, reason, fate)
        return self._cell.operations.redirect(connection, pending, following)

    def _require_returned(self, connection: Connection, message: AcceptInCell, attempt: AttemptRecord) -> None:
        if attempt.state not in ("starting", "building"):
            return
        if self._cell.records.lives.of_host(connection, attempt.host).is_returning:
            raise errors.RequestInProgress(request_id=message.request_id)

    def _is_of_this_life(self, connection: Connection, message: BuildFailedInCell, attempt: AttemptRecord) -> bool:
        """Return True if a report is of the host's present life: the one it names, or else that of the attempt."""
        named = attempt.host_life if message.life is None else message.life
        return named == self._cell.records.lives.of_host(connection, attempt.host).number

    def _current(
        self, connection: Connection, message: AcceptInCell | BuildFinished, *, lock: bool
    ) -> tuple[CellInstance, AttemptRecord]:
        """Return the instance and the attempt that a message is about.

        An attempt whose guest is being moved away passes both gates, as often as its host reports it again.

        :raises InstanceNotFound: the instance is unknown here, which does not prove that it is unwanted.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """
        read = self._cell.records.lock if lock else self._cell.records.read
        instance = read(connection, message.instance_uuid)
        if instance is None:
            raise errors.InstanceNotFound(name=message.instance_uuid)
        attempt = self._cell.records.attempt(connection, message.instance_uuid, message.attempt_id)
        if attempt is None or attempt.claim_id != message.claim_id or not self._is_wanted(instance, attempt):
            raise errors.ClaimReleased(consumer_uuid=message.instance_uuid, claim_id=message.claim_id)
        return instance, attempt

    @staticmethod
    def _is_wanted(instance: CellInstance, attempt: AttemptRecord) -> bool:
        if attempt.state == "held":
            return True
        is_current = instance.attempt_number == attempt.number and attempt.state in ("starting", "building", "active")
        # An instance in error may have its guest, for instance after a failed rebuild: the guest is not destroyed.
        return is_current and (instance.state in _WANTED or attempt.state == "active")
