"""What an agent does with the builds it is sent: accept, spawn, report; and how it destroys them.

The order of one attempt is written in :meth:`ComputeAgent._carry_out`. Everything it says names ids that follow from
the attempt's, so that each step may be repeated by anyone. What is done to guests that are there is in
:mod:`compute.orders`.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from compute import cell_messages
from compute.attempts import AgentAttempt, Attempts, Ended, Report
from compute.cell_client import CellClient, Interrupted
from compute.driver import Driver, GuestSpec
from compute.workers import Workers
from moorage import context, errors, failpoints
from moorage.bus.bus import serves
from moorage.messages import (
    BuildFailedInCell,
    BuildOnHost,
    DestroyOnHost,
    Done,
    RebuildOnHost,
    StartOnHost,
    StopOnHost,
)
from moorage.model import EndedAttempt, Guest

LOG = logging.getLogger(__name__)

#: What is to be done to a guest that is there.
Order = StopOnHost | StartOnHost | RebuildOnHost

# How long a destroy waits for a spawn under way before its caller is told to come again: it holds one of the server's
# few threads. Arbitrary: longer than most spawns of a fake host, shorter than any caller waits.
_SPAWN_PATIENCE = 5.0


class Lives:
    """Lives by host, for several threads. A cell of the former release names none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: dict[str, int] = {}

    def note(self, lives: Mapping[str, int]) -> None:
        """Record the present lives of hosts."""
        with self._lock:
            self._lives.update(lives)

    def of_host(self, host: str) -> int | None:
        """Return the life of a host, if it is known."""
        with self._lock:
            return self._lives.get(host)

    def of_hosts(self, hosts: Collection[str]) -> dict[str, int]:
        """Return the lives that are known of these hosts."""
        with self._lock:
            return {host: self._lives[host] for host in hosts if host in self._lives}


class ComputeAgent:
    """Serves an agent's topic. It keeps no record of requests: the driver knows attempts and claims by their ids."""

    def __init__(
        self, driver: Driver, cell: CellClient, workers: int, *, spawn_patience: float = _SPAWN_PATIENCE
    ) -> None:
        self._driver = driver
        self._cell = cell
        self._spawn_patience = spawn_patience
        #: What is in hand, for whoever counts the guests of a host.
        self.attempts = Attempts()
        #: Of its hosts, as the cell has answered.
        self.lives = Lives()
        self._workers = Workers("build", workers)
        self._abandoned = threading.Event()

    def start(self) -> None:
        """Begin to carry out what is taken up."""
        self._workers.start()

    def stop(self, seconds: float) -> None:
        """Begin no other attempt, and let those under way end; after ``seconds`` they are left to their fate.

        Guests stay. What had been taken up and not begun is forgotten: it holds nothing here, and its cell asks again.
        """
        self.attempts.stop()
        if not self._workers.stop(seconds):
            self._abandoned.set()
            LOG.warning("Builds that have not ended within %s s are abandoned", seconds)

    @serves(BuildOnHost)
    def build(self, message: BuildOnHost) -> Done:
        """Take an attempt up; one that is in hand is not begun twice, one that has ended repeats its report.

        :raises HostNotFound: the host is not this agent's, or has no such node.
        :raises NoReply: the host is dead.
        """
        self.require(message)
        if message.node is not None and not self._driver.has_node(message.host, message.node):
            raise errors.HostNotFound(name=f"{message.host} with node {message.node}")
        guest = cell_messages.guest(message)
        attempt = self.attempts.take_up(guest)
        if attempt is None:
            LOG.info("The attempt is in hand already, or was destroyed")
            return Done()
        LOG.info("Host %s takes up instance %s", message.host, message.instance_uuid)
        self._submit(attempt, guest, lambda: self._carry_out(attempt, guest, message))
        return Done()

    @serves(DestroyOnHost)
    def destroy(self, message: DestroyOnHost) -> Done:
        """Destroy what an attempt has started; answered when nothing is left, and nothing will come.

        :raises HostNotFound: the host is not this agent's.
        :raises NoReply: the host is dead.
        :raises RequestInProgress: its spawn is still under way and cannot be cut short; the guest is destroyed when
            that returns.
        :raises InvalidState: the attempt's guest belongs to another claim, and was left alone.
        """
        self.require(message)
        try:
            self._end_attempt(message, self._spawn_patience)
        except errors.RequestInProgress as fault:
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        LOG.info("Nothing of instance %s's attempt is left on host %s", message.instance_uuid, message.host)
        return Done()

    def end(self, ended: EndedAttempt) -> None:
        """Destroy what an attempt has left, upon its cell's record that it has ended, and never start it.

        :raises RequestInProgress: its spawn is still under way and cannot be cut short.
        :raises InvalidState: the attempt's guest belongs to another claim, and was left alone.
        """
        with context.bound(attempt_id=ended.attempt_id):
            self._end_attempt(ended, patience=0.0)
            LOG.info("Nothing of instance %s's attempt is left on host %s", ended.instance_uuid, ended.host)

    def settle(self, guest: Guest, *, runs: bool) -> None:
        """End an attempt whose guest an earlier life of the agent has left; one of this life is left alone.

        A guest that runs is reported again, which changes nothing where the report had been taken. One that does not
        run was being spawned when that life ended: a failed spawn like any other, destroyed and reported.
        """
        attempt = self.attempts.inherit(guest)
        if attempt is None:
            return
        if runs:  # known at once, not when its turn has come: until then its guest would take no order
            attempt.report = cell_messages.finished(guest)
        self._submit(attempt, guest, lambda: self._settle(attempt, guest))

    def require(self, message: BuildOnHost | DestroyOnHost | Order) -> None:
        """Answer for nobody: a dead host is as silent as an agent of its own would be, only sooner.

        :raises HostNotFound: the host is not this agent's.
        :raises NoReply: it is dead.
        """
        if not self._driver.has_host(message.host):
            raise errors.HostNotFound(name=message.host)
        if not self._driver.is_alive(message.host):
            raise errors.NoReply(topic=f"host {message.host}", method=message.method, seconds=0.0)

    def _submit(self, attempt: AgentAttempt, guest: Guest, work: Callable[[], None]) -> None:
        asked = context.current()
        self._workers.submit(lambda: self._run(attempt, guest, asked, work))

    def _run(self, attempt: AgentAttempt, guest: Guest, asked: context.Context, work: Callable[[], None]) -> None:
        with context.bound(request_id=asked.request_id, attempt_id=guest.attempt_id, service=asked.service):
            try:
                work()
            except Interrupted:
                LOG.info("The attempt is dropped where it stands: it was destroyed, or the agent stops")
            except errors.MoorageError as fault:
                # Nothing is destroyed on this ground: it is no word that the guest is not wanted.
                LOG.error("The attempt is left as it stands: %s", fault)
            except Exception:  # the next attempt has nothing to do with it
                LOG.exception("The attempt is left as it stands")
            finally:
                self.attempts.let_go(attempt)

    def _carry_out(self, attempt: AgentAttempt, guest: Guest, message: BuildOnHost) -> None:
        """Accept, spawn, report."""
        if guest.attempt_id in self._driver.stopped(guest.host):
            # Its cell has ordered that, and so knows that it was built; by now its claim may be its migration's, and
            # to ask for it would be answered as for a guest that is not wanted.
            LOG.info("The guest was built long ago, and is stopped")
            return
        if attempt.report is None:
            attempt.report = self._try(attempt, guest, message)
        if attempt.report is not None:
            self._tell(attempt, guest, attempt.report)

    def _settle(self, attempt: AgentAttempt, guest: Guest) -> None:
        if attempt.report is None:
            self.destroy_guest(attempt, guest)
            attempt.report = self._failed(guest, "the agent ended in the middle of the spawn")
        try:
            self._tell(attempt, guest, attempt.report)
        except errors.InstanceNotFound:
            # No news for its cell, which has just recorded it as a stranger's.
            LOG.info("The guest is left running, its cell has no record of it")

    def _try(self, attempt: AgentAttempt, guest: Guest, message: BuildOnHost) -> Report | None:
        """Return what there is to report of an attempt, or None if its guest was not wanted any more."""
        self.attempts.wait_for_count(attempt, guest.host)
        if attempt.destroyed:
            return None
        # An earlier life of this agent may have begun it; then its guest is somebody's, and only the cell can end it.
        begun = any(known.attempt_id == guest.attempt_id for known in self._driver.guests(guest.host))
        asked = cell_messages.guest_spec(message)
        try:
            if not begun:
                self._driver.admit(guest.host, asked)
            self._cell.until_answered(cell_messages.accept(guest), attempt.interrupt)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            LOG.info("Nothing is started, the claim is not this attempt's: %s", refusal)
            self._end(attempt, guest)
            return None
        except Interrupted:
            raise
        except Exception as fault:
            if begun:
                raise
            return self._not_begun(attempt, guest, fault)
        return self._spawn(attempt, guest, asked)

    def _not_begun(self, attempt: AgentAttempt, guest: Guest, fault: Exception) -> Report:
        """Return the report that nothing was started, once the driver has seen to it that nothing ever will be."""
        if isinstance(fault, errors.BuildFailed):
            reason = fault.reason
            LOG.info("Host %s refuses the build of instance %s: %s", guest.host, guest.instance_uuid, reason)
        elif isinstance(fault, errors.MoorageError):
            reason = f"the claim could not be accepted: {fault}"
            LOG.warning("The build of instance %s on host %s ends before it has begun: %s", *_named(guest), reason)
        else:
            reason = cell_messages.unexpected(fault)
            LOG.error("The build of instance %s on host %s ends before it has begun", *_named(guest), exc_info=fault)
        self.destroy_guest(attempt, guest)
        return self._failed(guest, reason, fault)

    def _spawn(self, attempt: AgentAttempt, guest: Guest, asked: GuestSpec) -> Report | None:
        if attempt.destroyed:
            return None
        try:
            with attempt.at_work():
                failpoints.reached("spawn")
                self._driver.spawn(guest.host, asked)
                failpoints.reached("spawned")
        except errors.BuildFailed as failure:
            LOG.warning("The spawn of instance %s on host %s has failed: %s", *_named(guest), failure.reason)
            report: Report = self._failed(guest, failure.reason, failure)
        except errors.Unavailable:
            raise  # the host is dead: what has become of the guest is not known before it returns
        except Exception as fault:  # a driver's own fault is a failed build like any other
            LOG.exception("The spawn of instance %s on host %s has met an unexpected fault", *_named(guest))
            report = self._failed(guest, cell_messages.unexpected(fault))
        else:
            report = cell_messages.finished(guest)
        if isinstance(report, BuildFailedInCell) and self._abandoned.is_set():
            raise Interrupted  # the driver is closed or about to be: the next life finds what is left
        if attempt.destroyed or isinstance(report, BuildFailedInCell):
            self.destroy_guest(attempt, guest)
        return None if attempt.destroyed else report

    def _failed(self, guest: Guest, reason: str, fault: Exception | None = None) -> BuildFailedInCell:
        is_final = isinstance(fault, errors.BuildImpossible)
        return cell_messages.failed(guest, reason, self.lives.of_host(guest.host), no_other_host=is_final)

    def _tell(self, attempt: AgentAttempt, guest: Guest, report: Report) -> None:
        """Pass the second gate, or have the cell try elsewhere: it is told until it answers."""
        try:
            self._cell.until_answered(report, attempt.interrupt)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            # A positive word that the guest is not wanted; any other refusal is none, and leaves it running.
            LOG.info("The guest is destroyed, the attempt is over for its cell: %s", refusal)
            self._end(attempt, guest)
        else:
            LOG.info("The cell has taken the report: %s", report.method)

    def _end(self, attempt: AgentAttempt, guest: Guest) -> None:
        """Destroy what the cell has refused, and say so once; the cell asks for what it has not heard."""
        self.destroy_guest(attempt, guest)
        try:
            self._cell.once(
                cell_messages.gone(self._driver.agent, [cell_messages.ended(guest)], self.lives.of_hosts([guest.host]))
            )
        except errors.MoorageError as fault:
            LOG.info("The cell has not heard that nothing is left: %s", fault)

    def _end_attempt(self, ended: Ended, patience: float) -> None:
        """Mark an attempt as destroyed, and destroy it: at once, or when what is under way has come to its end.

        :raises RequestInProgress: that takes longer than ``patience``, in seconds.
        """
        with self.attempts.destroying(ended) as attempt:
            try:
                self.destroy_guest(attempt, ended)
            except errors.RequestInProgress:
                if not attempt.at_rest.wait(patience):
                    raise
                self.destroy_guest(attempt, ended)

    def destroy_guest(self, attempt: AgentAttempt, named: Guest | Ended) -> None:
        """Have the driver destroy the guest of an attempt, while nobody else does.

        :raises RequestInProgress: something is done to it just now that cannot be cut short.
        :raises InvalidState: it belongs to another claim, and was left alone.
        """
        with attempt.ending:
            failpoints.reached("destroy")
            self._driver.destroy(named.host, named.instance_uuid, named.attempt_id, named.claim_id)
            failpoints.reached("destroyed")


def _named(guest: Guest) -> tuple[str, str]:
    """Return what a log line calls a guest by: its instance and its host."""
    return guest.instance_uuid, guest.host
