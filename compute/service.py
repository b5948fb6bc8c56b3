"""The compute service: one agent with its driver, on its cell's bus."""

import logging
from contextlib import ExitStack, closing
from functools import partial

from oslo_config import cfg

from compute import driver as drivers
from compute.agent import ComputeAgent
from compute.cell_client import CellClient
from compute.driver import Driver
from compute.numbering import Numbering
from compute.orders import GuestOrders
from compute.reports import Reporter, is_valid
from compute.returns import Returns
from compute.tracker import Tracker
from compute.tree_changes import TreeChange
from moorage import errors, logs
from moorage.bus.bus import Bus
from moorage.messages import LocateCell, LocateCellInCell, ReportHostsInCell, reports_topic
from moorage.model import Cell
from moorage.service.process import ComposedService, Periodic, until_available

LOG = logging.getLogger(__name__)

# Seconds to wait for one answer to the first message: at the start of a cloud the placement role may not serve yet.
_FIRST_PATIENCE = 3.0
# Reports in a row without an answer, before the agent counts as not ready.
_REPORTS_MISSED = 2


class ComputeService(ComposedService):
    """The agent that ``[compute] agent`` names, serving hosts of one cell.

    A stop waits a limited time for the builds in progress; guests stay.

    :param driver: a driver that is not yet started; by default the one that ``[compute] driver`` names is loaded.
    """

    def __init__(self, conf: cfg.ConfigOpts, cell_name: str, driver: Driver | None = None) -> None:
        super().__init__()
        self._conf = conf
        self._cell_name = cell_name
        self._driver = driver
        self._agent: str = conf.compute.agent
        conf.set_default("log_service_name", f"compute.{self._agent}")

    def _open(self, opened: ExitStack) -> None:
        """Serve builds, and begin to report; returns before the first report is answered.

        :raises CellNotFound: no cell has this name.
        :raises ConfigurationError: the driver cannot be loaded or started.
        :raises Unavailable: the placement role or a bus cannot be reached.
        """
        bus, cell, driver = self._connect(opened)
        client = CellClient(bus.client(f"conductor.{cell.uuid}"))
        reports_client = CellClient(bus.client(reports_topic(cell.uuid)))
        agent = ComputeAgent(driver, client, self._conf.compute.workers)
        farewell: float = self._conf.compute.stop_timeout
        opened.callback(agent.stop, farewell)
        agent.start()
        orders = GuestOrders(driver, agent, self._conf.compute.workers)
        server = bus.server(f"compute.{cell.uuid}", self._agent, [agent, orders], self._conf.rpc.threads)
        opened.callback(server.stop)
        # Stopped before the server, which waits until all its messages are answered.
        opened.callback(orders.stop, farewell)
        orders.start()
        server.start()
        # Reports and returns have a topic of their own: they do not wait behind builds.
        returns = Returns(driver, reports_client, agent)
        opened.callback(returns.stop, farewell)
        returns.start()
        numbering, options = Numbering(self._agent), self._conf.compute
        tracker = Tracker(driver, client, numbering, reshape_at_any_report=options.reshape_at_any_report)
        reporter = Reporter(driver, reports_client, tracker, returns, numbering, logs.service_name(self._conf))
        for periodic in (
            Periodic("Report of hosts", reporter.report, options.report_interval),
            # In its own thread: a report waits while the placement role is unavailable.
            Periodic("Heartbeats of hosts", reporter.beat, options.report_interval),
        ):
            opened.callback(periodic.stop)
            opened.callback(reporter.stop)
            periodic.start()
        self._checks = {"broker": server.check, "cell": partial(self._check_reports, reporter)}
        LOG.info("Agent %s serves %d host(s) of cell %s", self._agent, len(driver.hosts()), cell.name)

    def _check_reports(self, reporter: Reporter) -> None:
        """Check that the cell answers the reports of this agent's hosts.

        :raises NoReply: it has not answered the last ones.
        """
        silent = reporter.seconds_unanswered()
        if silent > _REPORTS_MISSED * self._conf.compute.report_interval + _FIRST_PATIENCE:
            raise errors.NoReply(topic="reports", method=ReportHostsInCell.method, seconds=round(silent))

    def wanted_reshapes(self) -> list[TreeChange]:
        """Return the reshapes that the driver wants for its hosts, without serving or changing anything.

        :raises CellNotFound: no cell has this name.
        :raises ConfigurationError: the driver cannot be loaded or started.
        :raises Unavailable: the placement role or a bus cannot be reached.
        """
        with ExitStack() as begun:
            bus, cell, driver = self._connect(begun)
            client = CellClient(bus.client(f"conductor.{cell.uuid}"))
            hosts = [host for host in driver.hosts() if is_valid(host)]
            return Tracker(driver, client, Numbering(self._agent)).wanted_reshapes(hosts)

    def _connect(self, begun: ExitStack) -> tuple[Bus, Cell, Driver]:
        """Connect to the cell's bus and start the driver; leaving ``begun`` closes both."""
        bus, cell = self._cell_bus(begun)
        driver = self._driver or drivers.load(self._conf, self._agent, self._cell_name)
        begun.callback(driver.close)
        driver.start()
        return bus, cell, driver

    def _cell_bus(self, begun: ExitStack) -> tuple[Bus, Cell]:
        """Return the cell of this agent, and its bus: the main one, unless the cell has its own.

        An agent with a configured cell uuid is on the cell's bus, and does not call the placement role.

        :raises ConfigurationError: the configured uuid is that of another cell.
        """
        if self._conf.compute.cell_uuid:
            own = begun.enter_context(closing(Bus(self._conf)))
            return own, self._named_cell(own, self._conf.compute.cell_uuid)
        with ExitStack() as asking:
            main = asking.enter_context(closing(Bus(self._conf)))
            cell = self._find_cell(main)
            if cell.transport_url is None:
                begun.push(asking.pop_all())
                return main, cell
        return begun.enter_context(closing(Bus(self._conf, cell.transport_url))), cell

    def _named_cell(self, bus: Bus, uuid: str) -> Cell:
        """Return the cell of a configured uuid, if its conductors know it by the name of this agent's cell."""
        conductor = bus.client(f"conductor.{uuid}", timeout=min(_FIRST_PATIENCE, self._conf.rpc.call_timeout))
        message, what = LocateCellInCell(name=self._cell_name), f"the conductor of cell {self._cell_name}"
        try:
            cell = until_available(lambda: conductor.call(message), what)
        except errors.InvalidRequest:  # a conductor of the previous release does not serve it
            return Cell(uuid=uuid, name=self._cell_name)
        if cell.name != self._cell_name:
            reason = f"[compute] cell_uuid {uuid} is cell {cell.name}, and the agent is of cell {self._cell_name}"
            raise errors.ConfigurationError(reason=reason)
        return cell

    def _find_cell(self, main: Bus) -> Cell:
        placement = main.client("placement", timeout=min(_FIRST_PATIENCE, self._conf.rpc.call_timeout))
        message = LocateCell(name=self._cell_name)
        return until_available(lambda: placement.call(message), f"the placement role, to learn of cell {message.name}")
