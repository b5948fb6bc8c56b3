"""How a cell builds: start on the claimed host, and when that fails, swap the claim to the next one and start there."""

import logging
from functools import partial

from oslo_config import cfg
from sqlalchemy import Connection

from conductor.cell_hosts import CellHosts
from conductor.cell_records import BUILDING, ERROR, FAILED, STARTING, AttemptRecord, CellInstance, CellRecords
from conductor.steps import BUILD, Ended, Next, Operation, Outcome, Record, Step, Superseded, Wait
from moorage import context, errors
from moorage.bus import Bus, Client
from moorage.database import Database
from moorage.messages import BuildOnHost, Claimed, DeleteAllocations, SwapClaim
from moorage.model import Value

LOG = logging.getLogger(__name__)

NO_ANSWER = "the agent did not answer"

#: The store has not said whether it was done, or asks to be asked again.
_UNDECIDED = (errors.Unavailable, errors.TryAgain, errors.InternalError, errors.ConsumerGenerationConflict)
#: The claim is no longer this build's: it was released, or what it belongs to was deleted.
_LOST = (errors.ClaimReleased, errors.ConsumerDeleted, errors.ConsumerNotFound)


class Starting(Value, frozen=True, kw_only=True):
    """Steps `start` and `wait`: the attempt by its number."""

    number: int


class Swapping(Value, frozen=True, kw_only=True):
    """Step `swap`: from the attempt that has failed to the next one.

    A candidate of null swaps the claim for one of the same amounts on the same host, which nobody knows: the old one,
    if no host has accepted it, can never be accepted any more.
    """

    failed: int
    candidate: int | None
    #: The host has reported that nothing of the guest is left; without it, only a claim never accepted is released.
    guest_gone: bool
    reason: str


class Releasing(Value, frozen=True, kw_only=True):
    """Step `release`: what the instance still holds under a claim, or all that it may hold, for good."""

    claim_id: str | None
    #: Why the instance is in error; without it, because every attempt has failed.
    reason: str | None = None


class CellBuilds:
    """The steps of a build inside its cell. They need neither a scheduler nor the super conductor."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        records: CellRecords,
        hosts: CellHosts,
        placement: Client,
        cell_bus: Bus,
    ) -> None:
        self._retries: int = conf.conductor.max_unanswered_retries
        self._database = database
        self._records = records
        self._hosts = hosts
        self._placement = placement
        self._cell_bus = cell_bus

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step; `wait` has none, a message moves it on."""
        return {(BUILD, "start"): self.start, (BUILD, "swap"): self.swap, (BUILD, "release"): self.release}

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, operation: Operation) -> Record:
        """Order the host's agent to start the attempt, then wait for what the host reports."""
        starting = operation.read(Starting)
        instance = self._read(operation)
        selection = instance.selections[starting.number - 1]
        attempt_id = operation.derived("attempt", starting.number)
        message = BuildOnHost(
            request_id=operation.derived("start", starting.number),
            host=selection.service_host,
            instance_uuid=instance.uuid,
            attempt_id=attempt_id,
            claim_id=instance.claim,
            request_spec=instance.spec,
            resources=selection.allocation_request.allocations[selection.compute_node_uuid].resources,
        )
        agents = self._cell_bus.client(f"compute.{self._records.cell_uuid}", server=selection.agent)
        with context.bound(attempt_id=attempt_id):
            LOG.info("Attempt %d of instance %s, on host %s", starting.number, instance.uuid, selection.service_host)
            try:
                agents.call(message)
            except errors.BusUnavailable:
                raise  # it is not this host that is away: another one could not be told either
            except errors.MoorageError as fault:
                return self._not_started(operation, starting, fault)
        return lambda _connection: Wait("wait", starting)

    def _not_started(self, operation: Operation, starting: Starting, fault: errors.MoorageError) -> Record:
        unanswered = isinstance(fault, _UNDECIDED)
        if unanswered and operation.tries < self._retries:
            raise fault
        # Even a clear refusal may follow an order that was taken up and whose answer was lost. So in either case the
        # store decides: what no host has accepted is released, and can never be accepted any more.
        reason = NO_ANSWER if unanswered else str(fault)
        LOG.warning("Attempt %d of %s has not been started: %s", starting.number, operation.subject, reason)
        return lambda connection: self.fall_back(
            connection, self._lock(connection, operation), starting.number, reason, guest_gone=False
        )

    def fall_back(
        self, connection: Connection, instance: CellInstance, failed: int, reason: str, *, guest_gone: bool
    ) -> Outcome:
        """Return the step that follows a failed attempt."""
        candidate = max(attempt.number for attempt in self._records.attempts(connection, instance.uuid)) + 1
        if candidate <= len(instance.selections):
            return Next(
                "swap", Swapping(failed=failed, candidate=candidate, guest_gone=guest_gone, reason=reason[:4096])
            )
        if guest_gone:
            return Next("release", Releasing(claim_id=instance.claim_id))
        return Next("swap", Swapping(failed=failed, candidate=None, guest_gone=False, reason=reason[:4096]))

    # --- swap ---------------------------------------------------------------------------------------------------------

    def swap(self, operation: Operation) -> Record:
        """Release the failed host and claim the next one, in one transaction of the store."""
        swapping = operation.read(Swapping)
        instance = self._read(operation)
        old = instance.selections[swapping.failed - 1]
        new = old if swapping.candidate is None else instance.selections[swapping.candidate - 1]
        # Only before the first sending: after it the claim may already be on that host.
        if swapping.candidate is not None and not operation.tries and not operation.resumed:
            down = self._hosts.why_down(new.service_host)
            if down is not None:
                return partial(self._skip, operation, swapping, down)
        message = SwapClaim(
            request_id=operation.derived("swap", swapping.failed, swapping.candidate, swapping.guest_gone),
            consumer_uuid=instance.uuid,
            claim_id=instance.claim,
            released=old.allocation_request,
            claimed=new.allocation_request,
            root_provider_uuid=new.compute_node_uuid,
            guest_gone=swapping.guest_gone,
        )
        try:
            claimed = self._placement.call(message)
        except errors.MoorageError as fault:
            return self._not_swapped(operation, swapping, fault)
        return partial(self._swapped, operation, swapping, claimed)

    def _not_swapped(self, operation: Operation, swapping: Swapping, fault: errors.MoorageError) -> Record:
        if isinstance(fault, errors.InvalidState):
            return partial(self._accepted, operation, swapping)
        if isinstance(fault, _LOST):
            # If it is not an order to delete that did this, a swap of ours whose answer was lost may have: whatever
            # the instance holds then is released, and nothing can be claimed for it any more.
            return lambda _connection: Next("release", Releasing(claim_id=None, reason=str(fault)))
        if isinstance(fault, _UNDECIDED) or swapping.candidate is None:
            raise fault
        return partial(self._skip, operation, swapping, str(fault))

    def _skip(self, operation: Operation, swapping: Swapping, why: str, connection: Connection) -> Outcome:
        instance, candidate = self._lock(connection, operation), swapping.candidate or 0
        LOG.info("Host %d of %s is skipped: %s", candidate, instance.uuid, why)
        self._records.add_attempt(
            connection,
            instance.uuid,
            instance.selections[candidate - 1],
            attempt_id=operation.derived("attempt", candidate),
            number=candidate,
            skipped=why,
        )
        return self.fall_back(connection, instance, swapping.failed, swapping.reason, guest_gone=swapping.guest_gone)

    def _accepted(self, operation: Operation, swapping: Swapping, connection: Connection) -> Outcome:
        """Go on where the host has accepted the claim after all: its report decides, and may have come meanwhile."""
        instance = self._lock(connection, operation)
        failed = self._attempt(connection, operation, swapping.failed)
        if failed.guest_gone:
            return self.fall_back(
                connection, instance, swapping.failed, failed.reason or swapping.reason, guest_gone=True
            )
        return Wait("wait", Starting(number=swapping.failed))

    def _swapped(self, operation: Operation, swapping: Swapping, claimed: Claimed, connection: Connection) -> Outcome:
        instance = self._lock(connection, operation)
        failed = self._attempt(connection, operation, swapping.failed)
        # Either the host has said so, or its claim was never accepted and nothing was started under it.
        self._records.change_attempt(
            connection, failed.attempt_id, state=FAILED, reason=failed.reason or swapping.reason, guest_gone=True
        )
        if swapping.candidate is None:
            self._records.change(connection, instance.uuid, claim_id=claimed.claim_id)
            return Next("release", Releasing(claim_id=claimed.claim_id))
        selection = instance.selections[swapping.candidate - 1]
        self._records.add_attempt(
            connection,
            instance.uuid,
            selection,
            attempt_id=operation.derived("attempt", swapping.candidate),
            number=swapping.candidate,
            claim_id=claimed.claim_id,
        )
        self._records.change(
            connection,
            instance.uuid,
            attempt_number=swapping.candidate,
            host=selection.service_host,
            claim_id=claimed.claim_id,
        )
        return Next("start", Starting(number=swapping.candidate))

    # --- release ------------------------------------------------------------------------------------------------------

    def release(self, operation: Operation) -> Record:
        """Release what the instance holds, then record that it is in error with every attempt named."""
        releasing = operation.read(Releasing)
        message = DeleteAllocations(
            request_id=operation.derived("release", releasing.claim_id),
            consumer_uuid=operation.subject,
            claim_id=releasing.claim_id,
            for_good=releasing.claim_id is None,
        )
        try:
            self._placement.call(message)
        except _LOST as fault:
            LOG.info("Nothing is left to release for %s: %s", operation.subject, fault)
        return partial(self._failed, operation, releasing.reason)

    def _failed(self, operation: Operation, reason: str | None, connection: Connection) -> Outcome:
        instance = self._lock(connection, operation)
        attempts = self._records.attempts(connection, instance.uuid)
        for attempt in attempts:
            if attempt.state in (STARTING, BUILDING):
                self._records.change_attempt(connection, attempt.attempt_id, state=FAILED, reason=reason)
        why = reason or str(_max_retries_exceeded(instance.uuid, attempts))
        self._records.change(connection, instance.uuid, state=ERROR, reason=why, host=None, claim_id=None)
        LOG.info("Instance %s is in error: %s", instance.uuid, why)
        return Ended(why)

    # ------------------------------------------------------------------------------------------------------------------

    def _read(self, operation: Operation) -> CellInstance:
        instance = self._database.read(lambda connection: self._records.read(connection, operation.subject))
        return _of_build(instance)

    def _lock(self, connection: Connection, operation: Operation) -> CellInstance:
        return _of_build(self._records.lock(connection, operation.subject))

    def _attempt(self, connection: Connection, operation: Operation, number: int) -> AttemptRecord:
        [attempt] = [
            attempt for attempt in self._records.attempts(connection, operation.subject) if attempt.number == number
        ]
        return attempt


def _of_build(instance: CellInstance | None) -> CellInstance:
    """Return the instance, if it is still being built: an order to delete it has ended its build's operation."""
    if instance is None or instance.state != BUILDING:
        raise Superseded
    return instance


def _max_retries_exceeded(instance_uuid: str, attempts: list[AttemptRecord]) -> errors.MaxRetriesExceeded:
    return errors.MaxRetriesExceeded(
        instance_uuid=instance_uuid,
        summary="; ".join(f"{attempt.host}: {attempt.reason}" for attempt in attempts),
        attempts=[{"host": attempt.host, "state": attempt.state, "reason": attempt.reason} for attempt in attempts],
    )
