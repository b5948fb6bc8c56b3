"""Orders to existing guests: stop, start, rebuild.

The driver keeps the orders that were carried out; this module keeps the orders in progress. Orders have their own
thread pool: hanging spawns do not delay orders, and orders do not delay the server's messages. The caller waits for a
while, and then gets ``RequestInProgress``. If it sends the same order again, it waits for the order in progress, gets
the failure, or learns that the order was carried out.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress

from compute import cell_messages
from compute.agent import ComputeAgent, Order
from compute.attempts import AgentAttempt
from compute.driver import Driver, GuestOrder
from compute.workers import Workers
from moorage import context, errors, failpoints
from moorage.bus.bus import serves
from moorage.messages import Done, RebuildOnHost, StartOnHost, StopOnHost

LOG = logging.getLogger(__name__)

# Seconds that a call waits for its order before it fails with RequestInProgress: it holds one of the server's few
# threads. Arbitrary: longer than most stops and starts, shorter than any caller waits.
_PATIENCE = 5.0
# The number of orders in memory at which all kept failures are dropped. If the order of a dropped failure is repeated,
# it is carried out again. Arbitrary: callers repeat an order within seconds.
_KEPT = 1000


class _PendingOrder:
    """An order in progress, or a failed order whose failure no caller has received yet."""

    def __init__(self, message: Order, order: GuestOrder, action: str, act: Callable[[], None]) -> None:
        self.message = message
        self.order = order
        self.action = action
        self.act = act
        self.key = (message.host, order.attempt_id)
        self.outcome: Future[None] = Future()
        #: The number of calls that wait for it.
        self.waiting = 0


class GuestOrders:
    """Serves an agent's orders to guests, in addition to :class:`~compute.agent.ComputeAgent`."""

    def __init__(self, driver: Driver, agent: ComputeAgent, workers: int, *, patience: float = _PATIENCE) -> None:
        self._driver = driver
        self._agent = agent
        self._patience = patience
        self._workers = Workers("order", workers)
        #: Done when the waiting calls must end.
        self._stopped: Future[None] = Future()
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str], _PendingOrder] = {}

    def start(self) -> None:
        """Start the worker threads."""
        self._workers.start()

    def stop(self, seconds: float) -> None:
        """Begin no more orders, wait up to ``seconds`` for the orders in progress, then end the waiting calls."""
        if not self._workers.stop(seconds):
            LOG.warning("Orders that have not ended within %s s are abandoned", seconds)
        if not self._stopped.done():
            self._stopped.set_result(None)

    @serves(StopOnHost)
    def stop_guest(self, message: StopOnHost) -> Done:
        """Stop a guest; answered when it no longer runs. One that does not run is left as it is.

        Every kind of order raises these errors:

        :raises HostNotFound: the host is not this agent's.
        :raises NoReply: the host is dead.
        :raises InvalidState: the attempt has no guest here, or one of another claim, or a later order was begun.
        :raises RequestInProgress: its spawn or another order is in progress, or this one takes long.
        :raises GuestActionFailed: the order failed; the same order may be sent again.
        """
        order = _order(message, message.request_id)
        return self._obey(message, order, "stop", lambda: self._driver.stop_guest(message.host, order))

    @serves(StartOnHost)
    def start_guest(self, message: StartOnHost) -> Done:
        """Start a guest that was stopped; answered when it runs. One that runs is left as it is."""
        order = _order(message, message.request_id)
        return self._obey(message, order, "start", lambda: self._driver.start_guest(message.host, order))

    @serves(RebuildOnHost)
    def rebuild_guest(self, message: RebuildOnHost) -> Done:
        """Rebuild a guest in place; answered when it runs."""
        order = _order(message, message.rebuild_id)
        return self._obey(
            message, order, "rebuild", lambda: self._driver.rebuild_guest(message.host, order, message.image)
        )

    def _obey(self, message: Order, order: GuestOrder, action: str, act: Callable[[], None]) -> Done:
        self._agent.require(message)
        pending = self._take_up(_PendingOrder(message, order, action, act))
        wait((pending.outcome, self._stopped), self._patience, FIRST_COMPLETED)
        with self._lock:
            pending.waiting -= 1
            if not pending.outcome.done():
                raise errors.RequestInProgress(request_id=message.request_id)
            self._forget(pending)
        pending.outcome.result()
        LOG.info("Host %s: %s of instance %s's guest is done", message.host, action, message.instance_uuid)
        return Done()

    def _take_up(self, pending: _PendingOrder) -> _PendingOrder:
        """Begin an order and return it, or return the one in progress if an earlier call has begun the same order."""
        with self._lock:
            known = self._pending.get(pending.key)
            if known is not None and (known.order, known.action) == (pending.order, pending.action):
                known.waiting += 1
                return known
            if known is not None and not known.outcome.done():
                raise errors.RequestInProgress(request_id=pending.message.request_id)
            attempt = self._agent.attempts.take_order(pending.order.attempt_id, pending.message.request_id)
            if len(self._pending) >= _KEPT:
                self._pending = {key: each for key, each in self._pending.items() if not each.outcome.done()}
            self._pending[pending.key] = pending
            pending.waiting = 1
        self._workers.submit(lambda: self._run(pending, attempt))
        return pending

    def _run(self, taken: _PendingOrder, attempt: AgentAttempt) -> None:
        fault: errors.MoorageError | None = None
        try:
            with context.bound(attempt_id=attempt.attempt_id):
                self._carry_out(attempt, taken)
        except errors.MoorageError as refusal:
            LOG.warning("The %s of the guest is refused or has failed: %s", taken.action, refusal)
            fault = refusal
        except Exception as unexpected:  # an unexpected fault of the driver counts as a failed order
            LOG.exception("An unexpected fault in the %s of the guest", taken.action)
            fault = errors.GuestActionFailed(
                instance_uuid=taken.message.instance_uuid,
                host=taken.message.host,
                action=taken.action,
                reason=cell_messages.unexpected(unexpected),
            )
        finally:
            self._agent.attempts.release(attempt)
        with self._lock:
            # A failure that no call waits for is kept for a repeated order, until another order comes.
            if fault is None or taken.waiting:
                self._forget(taken)
            # Under the lock: a waiting call has either timed out before this, or gets the outcome.
            if fault is None:
                taken.outcome.set_result(None)
            else:
                taken.outcome.set_exception(fault)

    def _carry_out(self, attempt: AgentAttempt, taken: _PendingOrder) -> None:
        gone = False
        try:
            with attempt.at_work():
                failpoints.reached("order", taken.action)
                taken.act()
                failpoints.reached("ordered", taken.action)
        finally:
            if attempt.ended is not None:  # the destroy may have failed with RequestInProgress: do it here
                with suppress(errors.InvalidState):  # the guest is of another claim
                    self._agent.destroy_guest(attempt, attempt.ended)
                    gone = True
        if gone:
            raise errors.InvalidState(reason=f"attempt {attempt.attempt_id} was destroyed meanwhile")

    def _forget(self, pending: _PendingOrder) -> None:
        if self._pending.get(pending.key) is pending:
            del self._pending[pending.key]


def _order(message: Order, order_id: str) -> GuestOrder:
    return GuestOrder(
        order_id=order_id,
        instance_uuid=message.instance_uuid,
        attempt_id=message.attempt_id,
        claim_id=message.claim_id,
        number=message.order_number,
    )
