"""The two gates of a build: nothing starts before its claim is accepted, and only the current attempt counts."""

import logging

from sqlalchemy import Connection

from conductor.cell_cleanings import CellCleanings
from conductor.cell_fall_back import FallBack
from conductor.cell_records import (
    ACTIVE,
    BUILDING,
    FAILED,
    STARTING,
    AttemptRecord,
    CellInstance,
    CellRecords,
)
from conductor.operations import Operations
from conductor.steps import BUILD, Ended, Operation
from conductor.worker import Worker
from moorage import errors
from moorage.bus import Client, serves
from moorage.database import Database
from moorage.messages import AcceptClaim, AcceptInCell, BuildFailedInCell, BuildFinished, Done

LOG = logging.getLogger(__name__)


class CellGates:
    """What a host's agent says of an attempt. Each answer is true when it is given, so none of them is stored."""

    def __init__(
        self,
        database: Database,
        records: CellRecords,
        operations: Operations,
        worker: Worker,
        fall_back: FallBack,
        cleanings: CellCleanings,
        placement: Client,
    ) -> None:
        self._database = database
        self._records = records
        self._operations = operations
        self._worker = worker
        self._following = fall_back.following
        self._cleanings = cleanings
        self._placement = placement

    @serves(AcceptInCell)
    def accept_claim(self, message: AcceptInCell) -> Done:
        """Let an attempt start on its host: if it is the current one here, and the store lets it have the claim."""
        self._database.read(lambda connection: self._current(connection, message, lock=False))
        self._placement.call(
            AcceptClaim(
                request_id=message.request_id,
                consumer_uuid=message.instance_uuid,
                claim_id=message.claim_id,
                attempt_id=message.attempt_id,
                host=message.host,
            )
        )

        def work(connection: Connection) -> Done:
            # Looked at again: an order to delete may have come between the two.
            _instance, attempt = self._current(connection, message, lock=True)
            if attempt.state == STARTING:
                self._records.change_attempt(connection, attempt.attempt_id, state=BUILDING)
            return Done()

        return self._database.write(work)

    @serves(BuildFinished)
    def build_finished(self, message: BuildFinished) -> Done:
        """Count a guest: if its attempt is still the current one."""

        def work(connection: Connection) -> Done:
            instance, attempt = self._current(connection, message, lock=True)
            if instance.state == ACTIVE:
                return Done()
            self._records.change_attempt(connection, attempt.attempt_id, state=ACTIVE)
            self._records.change(connection, instance.uuid, state=ACTIVE, reason=None)
            build = self._operations.pending(connection, instance.uuid, BUILD)
            if build is not None:
                self._operations.redirect(connection, build, Ended())
            LOG.info("Instance %s is active on host %s", instance.uuid, attempt.host)
            return Done()

        return self._database.write(work)

    @serves(BuildFailedInCell)
    def build_failed(self, message: BuildFailedInCell) -> Done:
        """Record that an attempt has failed and left nothing; if it is the current one, go on with the next host."""

        def work(connection: Connection) -> Operation | None:
            instance = self._records.lock(connection, message.instance_uuid)
            attempt = self._records.attempt(connection, message.instance_uuid, message.attempt_id)
            if instance is None or attempt is None or attempt.claim_id != message.claim_id:
                LOG.warning("A failure is reported of attempt %s, which is not known here", message.attempt_id)
                return None
            if attempt.state == ACTIVE:
                LOG.warning("A failure is reported of attempt %s, whose guest runs", message.attempt_id)
                return None
            if attempt.state in (STARTING, BUILDING):
                self._records.change_attempt(connection, attempt.attempt_id, state=FAILED, reason=message.reason)
            cleaning = self._cleanings.gone(connection, attempt)
            return cleaning or self._fall_back(connection, instance, attempt, message.reason)

        self._worker.take_up(self._database.write(work))
        return Done()

    def _fall_back(
        self, connection: Connection, instance: CellInstance, attempt: AttemptRecord, reason: str
    ) -> Operation | None:
        if instance.state != BUILDING or instance.attempt_number != attempt.number or attempt.state == FAILED:
            return None
        build = self._operations.pending(connection, instance.uuid, BUILD)
        # A swap under way is not disturbed: its request has been written down. It looks for this report afterwards.
        if build is None or build.step not in ("start", "wait"):
            return None
        following = self._following(connection, instance, attempt.number, reason, "gone")
        return self._operations.redirect(connection, build, following)

    def _current(
        self, connection: Connection, message: AcceptInCell | BuildFinished, *, lock: bool
    ) -> tuple[CellInstance, AttemptRecord]:
        """Return the instance and the attempt that a message speaks of.

        :raises InstanceNotFound: this cell has no record of the instance, which is no proof that nobody wants it.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """
        read = self._records.lock if lock else self._records.read
        instance = read(connection, message.instance_uuid)
        if instance is None:
            raise errors.InstanceNotFound(name=message.instance_uuid)
        attempt = self._records.attempt(connection, message.instance_uuid, message.attempt_id)
        if (
            attempt is None
            or instance.state not in (BUILDING, ACTIVE)
            or instance.attempt_number != attempt.number
            or attempt.state not in (STARTING, BUILDING, ACTIVE)
            or attempt.claim_id != message.claim_id
        ):
            raise errors.ClaimReleased(consumer_uuid=message.instance_uuid, claim_id=message.claim_id)
        return instance, attempt
