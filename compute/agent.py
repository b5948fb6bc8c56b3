"""What an agent does with the builds it is sent: accept, spawn, report; and how it destroys them.

The order of one attempt is written in :meth:`ComputeAgent._carry_out`. Everything it says names ids that follow from
the attempt's, so that each step may be repeated by anyone.
"""

import logging

from compute.attempts import Attempt, Attempts, Report
from compute.cell_client import CellClient, Interrupted
from compute.driver import Driver, GuestSpec
from compute.workers import Workers
from moorage import context, errors, ids
from moorage.bus import serves
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, BuildOnHost, DestroyOnHost, Done

LOG = logging.getLogger(__name__)

# How long a destroy waits for a spawn under way before its caller is told to come again: it holds one of the server's
# few threads. Arbitrary: longer than most spawns of a fake host, shorter than any caller waits.
_SPAWN_PATIENCE = 5.0
_LONGEST_REASON = 1000


class ComputeAgent:
    """Serves an agent's topic. It keeps no record of requests: the driver knows attempts and claims by their ids."""

    def __init__(
        self, driver: Driver, cell: CellClient, workers: int, *, spawn_patience: float = _SPAWN_PATIENCE
    ) -> None:
        self._driver = driver
        self._cell = cell
        self._spawn_patience = spawn_patience
        self._attempts = Attempts()
        self._workers = Workers("build", workers)

    def start(self) -> None:
        """Begin to carry out what is taken up."""
        self._workers.start()

    def stop(self, seconds: float) -> None:
        """Begin no other attempt, and let those under way end; after ``seconds`` they are left to their fate.

        Guests stay. What had been taken up and not begun is forgotten: it holds nothing here, and its cell asks again.
        """
        self._attempts.stop()
        if not self._workers.stop(seconds):
            LOG.warning("Builds that have not ended within %s s are abandoned", seconds)

    @serves(BuildOnHost)
    def build(self, message: BuildOnHost) -> Done:
        """Take an attempt up; one that is in hand is not begun twice, one that has ended repeats its report.

        :raises HostNotFound: the host is not this agent's.
        """
        self._require(message.host)
        attempt = self._attempts.take_up(message.attempt_id)
        if attempt is None:
            LOG.info("The attempt is in hand already, or was destroyed")
            return Done()
        LOG.info("Host %s takes up instance %s", message.host, message.instance_uuid)
        asked = context.current()
        self._workers.submit(lambda: self._run(attempt, message, asked))
        return Done()

    @serves(DestroyOnHost)
    def destroy(self, message: DestroyOnHost) -> Done:
        """Destroy what an attempt has started; answered when nothing is left, and nothing will come.

        :raises HostNotFound: the host is not this agent's.
        :raises RequestInProgress: its spawn is still under way; the guest is destroyed when that returns.
        :raises InvalidState: the attempt's guest belongs to another claim, and was left alone.
        """
        self._require(message.host)
        with self._attempts.destroying(message.attempt_id) as attempt:
            if not attempt.driving.acquire(timeout=self._spawn_patience):
                raise errors.RequestInProgress(request_id=message.request_id)
            try:
                self._destroy_guest(message)
            finally:
                attempt.driving.release()
        LOG.info("Nothing of instance %s's attempt is left on host %s", message.instance_uuid, message.host)
        return Done()

    def _require(self, host: str) -> None:
        if not self._driver.has_host(host):
            raise errors.HostNotFound(name=host)

    def _run(self, attempt: Attempt, message: BuildOnHost, asked: context.Context) -> None:
        with context.bound(request_id=asked.request_id, attempt_id=message.attempt_id, service=asked.service):
            try:
                self._carry_out(attempt, message)
            except Interrupted:
                LOG.info("The attempt is dropped where it stands: it was destroyed, or the agent stops")
            except errors.MoorageError as fault:
                # Nothing is destroyed on this ground: it is no word that the guest is not wanted.
                LOG.error("The attempt is left as it stands: %s", fault)
            except Exception:  # the next attempt has nothing to do with it
                LOG.exception("The attempt is left as it stands")
            finally:
                self._attempts.let_go(attempt)

    def _carry_out(self, attempt: Attempt, message: BuildOnHost) -> None:
        """Accept, spawn, report."""
        if attempt.report is None:
            attempt.report = self._try(attempt, message)
        if attempt.report is not None:
            self._tell(attempt, attempt.report, message)

    def _try(self, attempt: Attempt, message: BuildOnHost) -> Report | None:
        """Return what there is to report of an attempt, or None if its guest was not wanted any more."""
        guest = GuestSpec(
            instance_uuid=message.instance_uuid,
            attempt_id=message.attempt_id,
            claim_id=message.claim_id,
            request_spec=message.request_spec,
            resources=message.resources,
        )
        if attempt.destroyed:
            return None
        # An earlier life of this agent may have begun it; then its guest is somebody's, and only the cell can end it.
        begun = any(known.attempt_id == message.attempt_id for known in self._driver.guests(message.host))
        try:
            if not begun:
                self._driver.admit(message.host, guest)
            self._accept(attempt, message)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            LOG.info("Nothing is started, the claim is not this attempt's: %s", refusal)
            self._end(attempt, message)
            return None
        except Interrupted:
            raise
        except Exception as fault:
            if begun:
                raise
            return self._not_begun(attempt, message, fault)
        with attempt.driving:
            return self._spawn(attempt, message, guest)

    def _not_begun(self, attempt: Attempt, message: BuildOnHost, fault: Exception) -> Report:
        """Return the report that nothing was started, once the driver has seen to it that nothing ever will be."""
        if isinstance(fault, errors.BuildFailed):
            reason = fault.reason
            LOG.info("Host %s refuses the build: %s", message.host, reason)
        elif isinstance(fault, errors.MoorageError):
            reason = f"the claim could not be accepted: {fault}"
            LOG.warning("The build ends before it has begun: %s", reason)
        else:
            reason = _unexpected(fault)
            LOG.error("The build ends before it has begun", exc_info=fault)
        self._end(attempt, message)
        return _failed(message, reason)

    def _accept(self, attempt: Attempt, message: BuildOnHost) -> None:
        """Pass the first gate: nothing is started before the cell has said that the claim is this attempt's."""
        gate = AcceptInCell(
            request_id=ids.derived(message.attempt_id, "agent", "accept_claim"),
            instance_uuid=message.instance_uuid,
            claim_id=message.claim_id,
            attempt_id=message.attempt_id,
            host=message.host,
        )
        self._cell.until_answered(gate, attempt.interrupt)

    def _spawn(self, attempt: Attempt, message: BuildOnHost, guest: GuestSpec) -> Report | None:
        if attempt.destroyed:
            return None
        try:
            self._driver.spawn(message.host, guest)
        except errors.BuildFailed as failure:
            LOG.warning("The spawn has failed: %s", failure.reason)
            report: Report = _failed(message, failure.reason)
        except Exception as fault:  # a driver's own fault is a failed build like any other
            LOG.exception("The spawn has met an unexpected fault")
            report = _failed(message, _unexpected(fault))
        else:
            report = _finished(message)
        if attempt.destroyed or isinstance(report, BuildFailedInCell):
            self._destroy_guest(message)
        return None if attempt.destroyed else report

    def _tell(self, attempt: Attempt, report: Report, message: BuildOnHost) -> None:
        """Pass the second gate, or have the cell try elsewhere: it is told until it answers."""
        try:
            self._cell.until_answered(report, attempt.interrupt)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            # A positive word that the guest is not wanted; any other refusal is none, and leaves it running.
            LOG.info("The guest is destroyed, the attempt is over for its cell: %s", refusal)
            self._end(attempt, message)
        else:
            LOG.info("The cell has taken the report: %s", report.method)

    def _end(self, attempt: Attempt, message: BuildOnHost) -> None:
        with attempt.driving:
            self._destroy_guest(message)

    def _destroy_guest(self, named: BuildOnHost | DestroyOnHost) -> None:
        self._driver.destroy(named.host, named.instance_uuid, named.attempt_id, named.claim_id)


def _unexpected(fault: Exception) -> str:
    return f"an unexpected fault of the driver: {type(fault).__name__}"


def _finished(message: BuildOnHost) -> BuildFinished:
    return BuildFinished(
        request_id=ids.derived(message.attempt_id, "agent", "build_finished"),
        instance_uuid=message.instance_uuid,
        attempt_id=message.attempt_id,
        claim_id=message.claim_id,
    )


def _failed(message: BuildOnHost, reason: str) -> BuildFailedInCell:
    # The reason is part of the id: a restarted agent may have only another to give, which is another request.
    told = reason[:_LONGEST_REASON]
    return BuildFailedInCell(
        request_id=ids.derived(message.attempt_id, "agent", "build_failed", told),
        instance_uuid=message.instance_uuid,
        attempt_id=message.attempt_id,
        claim_id=message.claim_id,
        reason=told,
    )
