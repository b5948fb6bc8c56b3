"""The cells as the super conductor reaches them: learnt from the placement role, each over its own bus."""

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from oslo_config import cfg

from conductor.engine.bulkheads import Bulkheads, CircuitOpen, worker_share
from conductor.engine.steps import Backoff
from moorage import errors
from moorage.bus.bus import Bus
from moorage.messages import ListCells
from moorage.messages.wire import Message
from moorage.model import Cell

LOG = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

#: Cells asked at the same time: one that does not answer must not hold up the others.
CELLS_AT_ONCE = 8
#: Seconds for the answer to a question, at most. Arbitrary: as long as a person waits who looks at a list.
_PATIENCE = 5.0
#: Seconds for the answer to a probe, at most; nothing but another probe waits for it.
_PROBE_SECONDS = 2.0


def at_once(ask: Callable[[str, Sequence[T]], dict[str, R]], asked: Mapping[str, Sequence[T]]) -> dict[str, R]:
    """Return together what ``ask`` returns for each cell and what it is asked about; several are asked at a time."""
    if len(asked) < 2:
        return {key: found for uuid, about in asked.items() for key, found in ask(uuid, about).items()}
    together: dict[str, R] = {}
    with ThreadPoolExecutor(max_workers=min(len(asked), CELLS_AT_ONCE)) as threads:
        # The context goes along: the request id is on the log lines of these threads too.
        answers = [threads.submit(contextvars.copy_context().run, ask, uuid, about) for uuid, about in asked.items()]
        for answer in answers:
            together |= answer.result()
    return together


class Cells:
    """The cells known so far, and a bus for each address among them; a cell not known yet is looked up when asked for.

    :param bus: the main bus, which is also that of every cell without an address of its own.
    :param backoff: the seconds between two probes of a cell that does not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, bus: Bus, backoff: Backoff) -> None:
        self._conf = conf
        self._main = bus
        self._probe_seconds = min(conf.rpc.call_timeout / 3, _PROBE_SECONDS)
        #: Seconds for a question: whoever asks here waits for `call_timeout`, and must hear of the other cells sooner.
        self.patience: float = min(conf.rpc.call_timeout / 3, _PATIENCE)
        silent = (errors.NoReply, errors.BusUnavailable)
        share = worker_share(conf)
        #: Of the calls to each cell.
        self.bulkheads = Bulkheads("cell", share, backoff, silent, self.patience, postpones=True)
        self._lock = threading.Lock()
        self._cells: dict[str, Cell] = {}
        self._buses: dict[str, Bus] = {}

    def close(self) -> None:
        """Let go of the cells' buses; the main one is not ours."""
        self.bulkheads.stop()
        with self._lock:
            buses, self._buses = list(self._buses.values()), {}
        for bus in buses:
            bus.close()

    def cell(self, uuid: str) -> Cell:
        """Return a cell.

        :raises CellNotFound: there is none.
        :raises Unavailable: it is not known here, and the placement role does not answer.
        """
        with self._lock:
            known = self._cells.get(uuid)
        if known is None:
            listed = {
                cell.uuid: cell for cell in self._main.client("placement").call(ListCells(without_databases=True))
            }
            with self._lock:
                self._cells = listed
            known = listed.get(uuid)
        if known is None:
            raise errors.CellNotFound(name=uuid)
        return known

    def call(self, uuid: str, message: Message[R], timeout: float | None = None) -> R:
        """Send a message to a cell's conductors and return their answer.

        :raises CellUnreachable: the cell's bus or its conductors do not answer; whether it was done is unknown.
        :raises Postponed: other steps wait for the cell; of a step alone.
        :raises CellNotFound: there is no such cell.
        :raises MoorageError: what the cell's conductor has raised.
        """
        cell = self.cell(uuid)
        client = self._bus(cell).client(f"conductor.{uuid}", timeout=timeout)
        try:
            with self.bulkheads.admit(uuid, cell.name, lambda: client.ping(self._probe_seconds)):
                return client.call(message)
        except (errors.NoReply, errors.BusUnavailable, CircuitOpen) as fault:
            raise errors.CellUnreachable(cell=cell.name, reason=str(fault).rstrip(".")) from fault

    def ask_all(self, message: Message[R]) -> tuple[list[R], list[errors.MoorageError]]:
        """Send a question to every cell at the same time; return the answers, and the faults of those without one.

        :raises Unavailable: the placement role, which knows the cells, does not answer.
        """

        def ask(cell: Cell) -> R | errors.MoorageError:
            try:
                return self.call(cell.uuid, message, timeout=self.patience)
            except errors.MoorageError as fault:
                LOG.warning("Cell %s is left out: %s", cell.name, fault)
                return fault

        placement = self._main.client("placement", timeout=self.patience)
        cells = placement.call(ListCells(without_databases=True))
        if not cells:
            return [], []
        with ThreadPoolExecutor(max_workers=min(len(cells), CELLS_AT_ONCE)) as threads:
            # The context goes along: the request id is on the log lines of these threads too.
            asked = [threads.submit(contextvars.copy_context().run, ask, cell) for cell in cells]
            found = [each.result() for each in asked]
        faults = [each for each in found if isinstance(each, errors.MoorageError)]
        return [each for each in found if not isinstance(each, errors.MoorageError)], faults

    def _bus(self, cell: Cell) -> Bus:
        if cell.transport_url is None:
            return self._main
        with self._lock:
            known = self._buses.get(cell.transport_url)
        if known is not None:
            return known
        # Not under the lock, which calls to all other cells need.
        made = Bus(self._conf, cell.transport_url)
        with self._lock:
            known = self._buses.setdefault(cell.transport_url, made)
        if known is not made:
            made.close()
        return known
