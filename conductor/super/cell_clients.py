"""Clients of the cells: look up a cell in the placement role, and call its conductors over its bus."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from oslo_config import cfg

from conductor.engine.bulkheads import Bulkheads, CircuitOpen, worker_share
from conductor.engine.rows import batches
from conductor.engine.step_calls import Calling, StepCall, run_calls_here
from conductor.engine.steps import Backoff
from moorage import errors
from moorage.bus.bus import Bus
from moorage.messages import MAX_INSTANCES, ListCells
from moorage.messages.wire import Message
from moorage.model import Cell
from moorage.thread_pool import ThreadPool

LOG = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

#: The number of cells called at the same time. Those that have just fallen silent, for example behind one network, each
#: take the patience of a call: the others must be answered within the time-out of whoever asks for a list. Arbitrary.
CELLS_AT_ONCE = 32
#: Seconds to wait for the answer to a read, at most. Arbitrary: as long as an operator waits for a list.
_PATIENCE = 5.0
#: Seconds to wait for the answer to a probe, at most; only other probes wait for it.
_PROBE_SECONDS = 2.0


def was_refused(fault: Exception) -> bool:
    """Return whether a cell has refused a message, and done nothing."""
    is_refusal = isinstance(fault, errors.CallerError | errors.StaleOrder)
    # CellNotFound: the message was not sent. ReplyTooLarge: it was carried out, and only the answer cannot be sent.
    return is_refusal and not isinstance(fault, errors.CellNotFound | errors.ReplyTooLarge)


def concurrently(ask: Callable[[str, Sequence[T]], dict[str, R]], by_cell: Mapping[str, Sequence[T]]) -> dict[str, R]:
    """Call ``ask`` for each cell and its items, several cells at a time; return the merged results."""
    answers = _at_once(lambda each: ask(*each), list(by_cell.items()))
    return {key: found for answer in answers for key, found in answer.items()}


def _at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call ``work`` for each item, several at a time; return the results in the order of the items."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPool(max_workers=min(len(items), CELLS_AT_ONCE)) as threads:
        # Copy the context: the log lines of these threads carry the request id too.
        calls = [threads.submit_or_do(contextvars.copy_context().run, work, item) for item in items]
        return [call.result() for call in calls]


class Cells:
    """A cache of the cells, and a bus for each of their transport URLs. A cell that is not cached is looked up.

    :param bus: the main bus, which also serves every cell without a transport URL of its own.
    :param backoff: the seconds between two probes of a cell that does not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, bus: Bus, backoff: Backoff) -> None:
        self._conf = conf
        self._main = bus
        self._probe_seconds = min(conf.rpc.call_timeout / 3, _PROBE_SECONDS)
        #: Seconds to wait for a read: the client waits for `call_timeout`, and must get the other answers in time.
        self.patience: float = min(conf.rpc.call_timeout / 3, _PATIENCE)
        #: Seconds to wait for an order: the caller must get CellUnreachable before its own time-out.
        self.order_patience: float = conf.rpc.call_timeout / 3
        silent = (errors.NoReply, errors.BusUnavailable)
        share = worker_share(conf)
        #: The bulkhead of each cell.
        self.bulkheads = Bulkheads("cell", share, backoff, silent, self.patience, postpones=True)
        self._lock = threading.Lock()
        self._cells: dict[str, Cell] = {}
        self._buses: dict[str, Bus] = {}
        #: The number of the last look-up of the cells that was begun, and of the look-up whose result is cached.
        self._asked = self._answered = 0

    def close(self) -> None:
        """Stop the probes and close the buses of the cells; the main bus stays open."""
        self.bulkheads.stop()
        with self._lock:
            buses, self._buses = list(self._buses.values()), {}
        for bus in buses:
            bus.close()

    def cell(self, uuid: str) -> Cell:
        """Return a cell.

        :raises CellNotFound: there is no such cell.
        :raises Unavailable: it is not cached, and the placement role does not answer.
        """
        with self._lock:
            known = self._cells.get(uuid)
        if known is None:
            known = self._look_up().get(uuid)
        if known is None:
            raise errors.CellNotFound(name=uuid)
        return known

    def call(self, uuid: str, message: Message[R], timeout: float | None = None) -> R:
        """Send a message to a cell's conductors and return their answer.

        :raises CellUnreachable: the cell's bus or conductors do not answer; the message may have been carried out.
        :raises Postponed: other steps wait for the cell; raised only within a step.
        :raises CellNotFound: there is no such cell.
        :raises MoorageError: the error that the cell's conductor has raised.
        """
        return run_calls_here(self.calling(uuid, message, timeout))

    def calling(self, uuid: str, message: Message[R], timeout: float | None = None) -> Calling[R]:
        """Leave the sending of a message to the worker, and return its answer; raises as :meth:`call`."""
        cell = self.cell(uuid)
        client = self._bus(cell).client(f"conductor.{uuid}", timeout=timeout)
        try:
            with self.bulkheads.admit(uuid, cell.name, lambda: self._probe(uuid)):
                answer: R = yield StepCall(client, message)
                return answer
        except (errors.NoReply, errors.BusUnavailable, CircuitOpen) as fault:
            raise errors.CellUnreachable(cell=cell.name, reason=str(fault).rstrip(".")) from fault

    def read_of(
        self, uuid: str, named: Sequence[str], message: Callable[[tuple[str, ...]], Message[list[R]]]
    ) -> Iterator[R]:
        """Yield a cell's records of the named instances or migrations, read by as many messages as the answers need.

        :raises MoorageError: as :meth:`call`.
        """
        parts = [tuple(part) for part in batches(named, MAX_INSTANCES)]
        while parts:
            part = parts.pop()
            try:
                answer = self.call(uuid, message(part), timeout=self.patience)
            except errors.ReplyTooLarge:
                if len(part) == 1:
                    raise
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
            else:
                yield from answer

    def ask_all(self, message: Message[R]) -> tuple[list[R], list[errors.MoorageError]]:
        """Send a read to all cells concurrently; return the answers, and the errors of the cells without one.

        If the placement role, which lists the cells, does not answer, its error is the first one, and only the cells
        that are cached are asked.
        """

        def ask(cell: Cell) -> R | errors.MoorageError:
            try:
                return self.call(cell.uuid, message, timeout=self.patience)
            except errors.MoorageError as fault:
                LOG.warning("Cell %s is left out: %s", cell.name, fault)
                return fault

        faults: list[errors.MoorageError] = []
        try:
            cells = self._look_up()
        except errors.Unavailable as fault:
            # The operations that wait for the placement role must be listed while it is away.
            LOG.warning("Cells that this conductor has not called are left out: %s", fault)
            faults.append(fault)
            with self._lock:
                cells = self._cells
        found = _at_once(ask, list(cells.values()))
        faults += [each for each in found if isinstance(each, errors.MoorageError)]
        return [each for each in found if not isinstance(each, errors.MoorageError)], faults

    def _look_up(self) -> dict[str, Cell]:
        """Read the cells from the placement role, and close the buses of addresses that are no longer used.

        :raises Unavailable: it does not answer.
        """
        with self._lock:
            self._asked += 1
            number = self._asked
        cells = self._main.client("placement", timeout=self.patience).call(ListCells(without_databases=True))
        listed = {cell.uuid: cell for cell in cells}
        with self._lock:
            if number < self._answered:  # a later look-up was answered before: this one may name an old address
                return listed
            self._answered = number
            self._cells = listed
            former = self._buses.keys() - {cell.transport_url for cell in cells}
            buses = [self._buses.pop(url) for url in former]
        for bus in buses:
            bus.close()
        return listed

    def _probe(self, uuid: str) -> None:
        """Check that a cell answers. If it does not, its address is looked up again before the next probe.

        :raises CellNotFound: the cell was deleted.
        """
        cell = self.cell(uuid)
        try:
            self._bus(cell).client(f"conductor.{uuid}").ping(self._probe_seconds)
        except errors.MoorageError:
            self._look_up()
            raise

    def _bus(self, cell: Cell) -> Bus:
        if cell.transport_url is None:
            return self._main
        with self._lock:
            known = self._buses.get(cell.transport_url)
        if known is not None:
            return known
        # Connect without the lock, because calls to all other cells need it.
        try:
            made = Bus(self._conf, cell.transport_url)
        except errors.ConfigurationError:
            # Look it up again for the next call: an operator may have corrected the address.
            with self._lock:
                self._cells.pop(cell.uuid, None)
            raise
        with self._lock:
            known = self._buses.setdefault(cell.transport_url, made)
        if known is not made:
            made.close()
        return known
