"""The compute agent: accepts, spawns, reports and destroys builds.

:meth:`ComputeAgent._carry_out` shows the order of one attempt. All its messages have request ids derived from the
attempt's id, so that each step can be repeated by any process. Orders to existing guests are in :mod:`compute.orders`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from functools import partial

from msgspec import convert

from compute import cell_messages
from compute.attempts import AgentAttempt, Attempts, EndNotice, Report
from compute.cell_client import CellClient, Interrupted
from compute.driver import Driver, GuestSpec
from compute.workers import Workers
from moorage import context, errors, failpoints, tracing
from moorage.batches import BatchItem
from moorage.bus.bus import serves, serves_many
from moorage.messages import BuildFailedInCell, BuildOnHost, DestroyOnHost, Done, RebuildOnHost, StartOnHost, StopOnHost
from moorage.model import EndedAttempt, Guest

LOG = logging.getLogger(__name__)

#: An order to an existing guest.
Order = StopOnHost | StartOnHost | RebuildOnHost

# Seconds that a call waits for the destroy, and that the destroy waits for a spawn in progress, before it fails with
# RequestInProgress: it holds one of the server's few threads. Arbitrary: longer than most destroys and than most spawns
# of a fake host, shorter than any caller waits.
_PATIENCE = 5.0


class ComputeAgent:
    """Serves the topic of an agent. It stores no requests: the driver keeps attempts and claims by their ids."""

    def __init__(self, driver: Driver, cell: CellClient, workers: int, *, patience: float = _PATIENCE) -> None:
        self._driver = driver
        self._cell = cell
        self._patience = patience
        #: The attempts in progress.
        self.attempts = Attempts()
        #: The current life of each host, as last received from the cell: a number that grows each time the host
        #: returns. A cell of the previous release sends none. Many threads read it; `compute.returns` writes it.
        self.lives: dict[str, int] = {}
        self._workers = Workers("build", workers)
        #: Destroys have threads of their own: a driver that hangs in one holds up nothing but other destroys.
        self._destroyers = Workers("destroy", workers)
        self._lock = threading.Lock()
        #: The outcomes of the destroys in progress, by host, attempt and claim: repeated orders wait for the same one.
        self._destroying: dict[tuple[str, str, str], Future[None]] = {}
        self._abandoned = threading.Event()

    def start(self) -> None:
        """Start the worker threads."""
        self._workers.start()
        self._destroyers.start()

    def stop(self, seconds: float) -> None:
        """Begin no other attempt or destroy, and wait for those in progress; after ``seconds`` they are abandoned.

        Guests stay. Queued attempts are dropped: they hold nothing here, and their cell sends them again.
        """
        self.attempts.stop()
        end = time.monotonic() + seconds
        if not self._workers.stop(seconds):
            self._abandoned.set()
            LOG.warning("Builds that have not ended within %s s are abandoned", seconds)
        if not self._destroyers.stop(max(end - time.monotonic(), 0.0)):
            LOG.warning("Destroys that have not ended within %s s are abandoned", seconds)

    @serves(BuildOnHost)
    def build(self, message: BuildOnHost) -> Done:
        """Queue an attempt, unless it is already in progress; an attempt that has ended sends its report again.

        :raises HostNotFound: the host is not this agent's, or has no such node.
        :raises NoReply: the host is dead.
        """
        self.require(message)
        if message.node is not None and not self._driver.has_node(message.host, message.node):
            raise errors.HostNotFound(name=f"{message.host} with node {message.node}")
        guest = convert(message, Guest, from_attributes=True)
        attempt = self.attempts.take_up(guest)
        if attempt is None:
            LOG.info("The attempt is in progress already, or was destroyed")
            return Done()
        LOG.info("Host %s starts to build instance %s", message.host, message.instance_uuid)
        self._workers.submit(lambda: self._run(attempt, lambda: self._carry_out(attempt, guest, message)))
        return Done()

    @serves_many(BuildOnHost)
    def build_many(self, calls: Sequence[BatchItem[BuildOnHost, Done]]) -> list[None]:
        """Queue the attempts of orders that came in one message, each as in :meth:`build`."""
        for call in calls:
            call.do(self.build)
        return [None] * len(calls)

    @serves(DestroyOnHost)
    def destroy(self, message: DestroyOnHost) -> Done:
        """Destroy the guest of an attempt. After the answer nothing of it is left, and nothing will be started.

        :raises HostNotFound: the host is not this agent's.
        :raises NoReply: the host is dead.
        :raises RequestInProgress: its spawn is in progress and cannot be cut short, and the guest is destroyed when the
            spawn returns; or the destroy takes long.
        :raises InvalidState: the attempt's guest belongs to another claim, and was left alone.
        """
        self.require(message)
        outcome = self.begin_destroy(message, self._patience)
        if not wait((outcome,), self._patience).done:
            raise errors.RequestInProgress(request_id=message.request_id)
        try:
            outcome.result()
        except errors.RequestInProgress as fault:
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        return Done()

    def begin_destroy(self, ended: EndNotice, spawn_patience: float = 0.0) -> Future[None]:
        """Mark an attempt as destroyed, so that it never starts, and destroy its guest in a thread of the pool.

        :param spawn_patience: the longest wait for a spawn or an order that cannot be cut short, in seconds.
        :return: the outcome; of the destroy in progress, if there is one. It may have these errors:
            ``RequestInProgress``: the spawn or order takes longer; ``InvalidState``: the attempt's guest belongs to
            another claim, and was left alone.
        """
        key = (ended.host, ended.attempt_id, ended.claim_id)
        with self._lock:
            outcome = self._destroying.get(key)
            if outcome is None:
                outcome = self._destroying[key] = Future()
                attempt = self.attempts.mark_destroyed(ended)
                self._destroyers.submit(partial(self._destroy, attempt, ended, spawn_patience, outcome))
        return outcome

    def settle(self, guest: Guest, *, runs: bool) -> None:
        """Complete an attempt whose guest is older than this process, or whose host has died before its result.

        A running guest is reported again, which is idempotent. A guest that does not run was being spawned when the
        previous process ended, or when its host died: it is destroyed, and reported as a failed spawn.
        """
        attempt = self.attempts.inherit(guest)
        if attempt is None:
            return
        if runs:  # set before a worker takes it: an attempt without a report refuses orders to its guest
            attempt.report = cell_messages.finished(guest)
        self._workers.submit(lambda: self._run(attempt, lambda: self._settle(attempt, guest)))

    def settle_unanswered(self, except_on: Collection[str]) -> None:
        """Complete the attempts that their hosts did not answer, on hosts that are alive again.

        The cell may not have missed such a host: then it does not return, and the attempt would wait for its time-out.

        :param except_on: hosts that have to return.
        """
        unanswered = self.attempts.unanswered()
        living = self.living({guest.host for guest in unanswered}.difference(except_on))
        for guest in unanswered:
            if guest.host in living and (attempt := self.attempts.inherit(guest)) is not None:
                self._workers.submit(partial(self._run, attempt, partial(self._settle_present, attempt, guest)))

    def living(self, hosts: Collection[str]) -> list[str]:
        """Return the hosts that can take work now; a fault of the driver is logged, and delays only the hosts of it."""
        told = _tell(self._driver.is_alive, hosts, "It is unknown whether %d host(s) are alive, one is %s")
        return [host for host, is_alive in told.items() if is_alive]

    def owned(self, hosts: Collection[str]) -> dict[str, bool]:
        """Return for each host whether it is this agent's; a host of which the driver cannot tell is left out."""
        return _tell(self._driver.has_host, hosts, "It is unknown whether %d host(s) are this agent's, one is %s")

    def require(self, message: BuildOnHost | DestroyOnHost | Order) -> None:
        """Check that a message's host is this agent's and alive.

        A dead host raises at once the error that the caller of an agent on that host would get after its time-out.

        :raises HostNotFound: the host is not this agent's.
        :raises NoReply: the host is dead.
        """
        if not self._driver.has_host(message.host):
            raise errors.HostNotFound(name=message.host)
        if not self._driver.is_alive(message.host):
            raise errors.NoReply(topic=f"host {message.host}", method=message.method, seconds=0.0)

    def _run(self, attempt: AgentAttempt, work: Callable[[], None]) -> None:
        with context.bound(attempt_id=attempt.attempt_id):
            try:
                work()
            except Interrupted:
                LOG.info("The attempt is abandoned: it was destroyed, or the agent stops")
            except errors.MoorageError as fault:
                # Nothing is destroyed: this error does not mean that the guest is not wanted.
                LOG.error("The attempt is left as it is: %s", fault)
                # TryAgain is of the driver: the guest cannot be destroyed before its spawn has ended.
                attempt.unanswered = isinstance(fault, errors.Unavailable | errors.TryAgain)
            except Exception:  # must not end the worker thread
                LOG.exception("The attempt is left as it is")
                attempt.unanswered = True
            finally:
                self.attempts.let_go(attempt)

    def _carry_out(self, attempt: AgentAttempt, guest: Guest, message: BuildOnHost) -> None:
        """Carry out an attempt: accept the claim, spawn, report."""
        if guest.attempt_id in self._driver.stopped(guest.host):
            # The cell has ordered the stop, so it already has the report of this build. By now the claim may belong to
            # the migration: the first gate would refuse it, as if the guest were no longer wanted.
            LOG.info("The guest was built earlier, and is stopped")
            return
        if attempt.report is None:
            attempt.report = self._try(attempt, guest, message)
        if attempt.report is not None:
            self._send_report(attempt, guest, attempt.report)

    def _settle_present(self, attempt: AgentAttempt, guest: Guest) -> None:
        """Complete an attempt by the guest that its host has now, if any."""
        # Only a guest that was reported before is ever stopped.
        if guest.attempt_id in self._driver.stopped(guest.host):
            return
        there = {each.attempt_id for each in self._driver.guests(guest.host)}
        if guest.attempt_id in there.difference(self._driver.unfinished(guest.host)):
            attempt.report = cell_messages.finished(guest)
        self._settle(attempt, guest)

    def _settle(self, attempt: AgentAttempt, guest: Guest) -> None:
        if attempt.report is None:
            self.destroy_guest(attempt, guest)
            ended = "the agent or its host ended in the middle of the spawn", None
            attempt.report = self._failed(guest, *(attempt.failure or ended))
        try:
            self._send_report(attempt, guest, attempt.report)
        except errors.NotFound:
            # Its cell has just recorded it as an unknown guest.
            LOG.info("The guest is left running, its cell has no record of it")

    def _try(self, attempt: AgentAttempt, guest: Guest, message: BuildOnHost) -> Report | None:
        """Accept the claim and spawn; return the report, or None if the guest is no longer wanted."""
        # Wait while the guests of the host are listed for its return. An attempt that begins now would not be in the
        # list: the cell would record it as failed, although its guest is being made.
        self.attempts.wait_for_count(attempt, guest.host)
        if attempt.destroyed:
            return None
        # The agent may have begun this attempt before a restart: the guest may be in use, and only the cell may end it.
        begun = any(known.attempt_id == guest.attempt_id for known in self._driver.guests(guest.host))
        spec = convert(message, GuestSpec, from_attributes=True)
        try:
            # The driver checks first: if it refuses the guest, the claim need not pass the gate.
            if not begun:
                self._driver.admit(guest.host, spec)
            self._cell.until_answered(cell_messages.accept(guest), attempt.interrupt)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            LOG.info("Nothing is started, the claim is not this attempt's: %s", refusal)
            # Destroy it although nothing was started, so that the driver refuses a late spawn of this attempt.
            self._end(attempt, guest)
            return None
        except Interrupted:
            # The attempt was destroyed, or the agent stops: it is dropped. If it is current, the cell sends it again.
            raise
        except Exception as fault:
            if begun:  # no reason to destroy a guest that may be in use
                raise
            return self._not_begun(attempt, guest, fault)
        return self._spawn(attempt, guest, spec)

    def _not_begun(self, attempt: AgentAttempt, guest: Guest, fault: Exception) -> Report:
        """Destroy an attempt that was not started, so that it can never start; return the report of its failure."""
        if isinstance(fault, errors.BuildFailed):
            reason = fault.reason
            LOG.info("Host %s refuses the build of instance %s: %s", guest.host, guest.instance_uuid, reason)
        elif isinstance(fault, errors.MoorageError):
            reason = f"the claim could not be accepted: {fault}"
            LOG.warning("The build of instance %s on host %s ends before its start: %s", *_named(guest), reason)
        else:
            reason = cell_messages.unexpected(fault)
            LOG.error("The build of instance %s on host %s ends before its start", *_named(guest), exc_info=fault)
        attempt.failure = reason, fault
        self.destroy_guest(attempt, guest)
        return self._failed(guest, reason, fault)

    def _spawn(self, attempt: AgentAttempt, guest: Guest, spec: GuestSpec) -> Report | None:
        # It may have been destroyed during the wait for the gate's answer.
        if attempt.destroyed:
            return None
        attempt.failure = None
        try:
            with attempt.at_work():
                failpoints.reached("spawn")
                with tracing.span("spawn", about=guest):
                    self._driver.spawn(guest.host, spec)
                failpoints.reached("spawned")
        except errors.BuildFailed as failure:
            LOG.warning("The spawn of instance %s on host %s has failed: %s", *_named(guest), failure.reason)
            attempt.failure = failure.reason, failure
        except errors.Unavailable:
            raise  # the host is dead: the guest's state is unknown until the host returns
        except Exception as fault:  # an unexpected fault of the driver counts as a failed build
            LOG.exception("An unexpected fault in the spawn of instance %s on host %s", *_named(guest))
            attempt.failure = cell_messages.unexpected(fault), fault
        why = attempt.failure
        report = cell_messages.finished(guest) if why is None else self._failed(guest, *why)
        if isinstance(report, BuildFailedInCell) and self._abandoned.is_set():
            raise Interrupted  # the driver is about to be closed: the agent's next start finds what is left
        # A failed spawn may leave pieces of the guest. Remove them before the failure is reported, because the cell
        # then releases the claim. Destroy it again if it was destroyed meanwhile: the spawn may have ended after that.
        if attempt.destroyed or isinstance(report, BuildFailedInCell):
            self.destroy_guest(attempt, guest)
        return None if attempt.destroyed else report

    def _failed(self, guest: Guest, reason: str, fault: Exception | None = None) -> BuildFailedInCell:
        is_final = isinstance(fault, errors.BuildImpossible)
        return cell_messages.failed(guest, reason, self.lives.get(guest.host), no_other_host=is_final)

    def _send_report(self, attempt: AgentAttempt, guest: Guest, report: Report) -> None:
        """Send the report until the cell answers: it passes the second gate, or makes the cell try another host."""
        try:
            self._cell.until_answered(report, attempt.interrupt)
        except (errors.ClaimReleased, errors.ConsumerDeleted) as refusal:
            # These two errors alone mean that the guest is not wanted; any other refusal leaves it running.
            LOG.info("The guest is destroyed, because its cell has ended the attempt: %s", refusal)
            self._end(attempt, guest)
        else:
            LOG.info("The cell has taken the report: %s", report.method)

    def _end(self, attempt: AgentAttempt, guest: Guest) -> None:
        """Destroy a guest that the cell has refused, and report that once; if the report is lost, the cell asks."""
        self.destroy_guest(attempt, guest)
        ended = convert(guest, EndedAttempt, from_attributes=True)
        try:
            self._cell.once(cell_messages.gone(self._driver.agent, [ended], self.lives))
        except errors.MoorageError as fault:
            LOG.info("The cell has not received the report that nothing is left: %s", fault)

    def _destroy(self, attempt: AgentAttempt, ended: EndNotice, spawn_patience: float, outcome: Future[None]) -> None:
        """Destroy the guest of an attempt at once, or after the spawn or order in progress."""
        fault: Exception | None = None
        with context.bound(attempt_id=ended.attempt_id):
            try:
                self._destroy_at_rest(attempt, ended, spawn_patience)
                LOG.info("Nothing of instance %s's attempt is left on host %s", ended.instance_uuid, ended.host)
            except Exception as raised:  # noqa: BLE001 - handled where the outcome is awaited
                fault = raised
        self.attempts.release(attempt)
        with self._lock:
            del self._destroying[ended.host, ended.attempt_id, ended.claim_id]
        if fault is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(fault)

    def _destroy_at_rest(self, attempt: AgentAttempt, ended: EndNotice, spawn_patience: float) -> None:
        try:
            self.destroy_guest(attempt, ended)
        except errors.RequestInProgress:
            if not attempt.at_rest.wait(spawn_patience):
                raise
            self.destroy_guest(attempt, ended)

    def destroy_guest(self, attempt: AgentAttempt, named: Guest | EndNotice) -> None:
        """Have the driver destroy the guest of an attempt, one call at a time.

        :raises RequestInProgress: a spawn or an order is in progress and cannot be cut short.
        :raises InvalidState: the guest belongs to another claim, and was left alone.
        """
        with attempt.ending:
            failpoints.reached("destroy")
            with tracing.span("destroy", about=named):
                self._driver.destroy(named.host, named.instance_uuid, named.attempt_id, named.claim_id)
            failpoints.reached("destroyed")


def _named(guest: Guest) -> tuple[str, str]:
    """Return the instance and the host of a guest, for a log line."""
    return guest.instance_uuid, guest.host


def _tell(ask: Callable[[str], bool], hosts: Collection[str], unknown: str) -> dict[str, bool]:
    """Return what the driver tells of each host; leave out those of which it raises, and log each fault once."""
    told: dict[str, bool] = {}
    faults: dict[str, tuple[Exception, list[str]]] = {}
    for host in hosts:
        try:
            told[host] = ask(host)
        except Exception as fault:  # noqa: BLE001 - logged below, once for all hosts that have it
            faults.setdefault(repr(fault), (fault, []))[1].append(host)
    for first, names in faults.values():
        LOG.error(unknown, len(names), names[0], exc_info=first)
    return told
