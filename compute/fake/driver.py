"""A driver whose hosts and guests are records in a file; it also documents the properties of a real driver.

A real driver has the same properties:

* **Guests outlive the agent.** They are in a file of their own. A restarted agent finds them, with the attempt and the
  claim of their start; a repeated attempt finds its guest running.
* **A host enforces its capacity.** It counts its guests, half-made ones included, and refuses one that does not fit. A
  guest with a valid claim always fits: a refusal shows an over-commit, or a release of what a guest still held.
* **A guest begins to hold its amounts before it runs,** and holds them until it is destroyed. A spawn that fails may
  leave pieces behind: the agent destroys them before it reports the failure.
* **Destroyed means destroyed.** An attempt that was destroyed, begun or not, is never started afterwards. A spawn in
  progress is cut short. If it cannot be cut short, the destroy raises ``RequestInProgress`` until the spawn has ended.
* **Stopped means stopped.** A stopped guest keeps its amounts, and runs again only by an order: neither after a restart
  of its agent, nor because its build is sent again. An order is carried out once, and never after a later order.
* **A moved guest is a guest.** It is spawned like any other guest, under its own attempt, and counted in addition to
  the old guest, even if both are on the same host.
* **Guests are destroyed only by attempt and claim.** A guest that no message names stays.

Options choose its faults. Tests that need other faults override :meth:`FakeDriver.behaviour`.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import quote

from oslo_config import cfg

from compute.driver import Driver, GuestOrder, GuestSpec
from compute.fake.attributes import FakeAttributes
from compute.fake.behaviour import Behaviour, chosen, chosen_for_order
from compute.fake.guest_file import Action, GuestFile
from compute.fake.layout import FakeLayout
from compute.fake.timing import Timeline, Work
from compute.provider_tree import ProviderTree
from compute.tree_changes import compare
from moorage import errors, ids
from moorage.messages import ReportHostsInCell, ReportProviders
from moorage.messages.wire import decode_strictly, encode
from moorage.model import VCPU, Guest, HostReport, Image

LOG = logging.getLogger(__name__)


class FakeDriver(Driver):
    """A driver of ``[fake_driver] hosts`` hosts, all alike except for their attributes.

    Its methods raise the errors that the contract names.

    :raises ConfigurationError: an option is not valid.
    """

    def __init__(self, conf: cfg.ConfigOpts, agent: str, cell_name: str) -> None:
        super().__init__(conf, agent, cell_name)
        options = conf.fake_driver
        prefix = options.host_prefix or agent
        self._layout = FakeLayout(options)
        self._attributes = FakeAttributes(options)
        self._time = Timeline()
        self._hosts = {
            name: self._describe(name) for name in (f"{prefix}-{n:04d}" for n in range(1, options.hosts + 1))
        }
        self._file = GuestFile(Path(options.state_file or quote(f"moorage-fake-{cell_name}-{agent}.sqlite", safe=" ")))
        self._check()

    def start(self) -> None:
        """Open the file of guests, and add the configured unknown guests."""
        self._file.open()
        for guest in self._unknown_guests():
            try:
                self._file.begin(guest, self._layout.capacity)
                self._file.finish(guest)
            except errors.BuildFailed as refusal:
                LOG.warning("Host %s has no unknown guest: %s", guest.host, refusal.reason)

    def close(self) -> None:
        """Cut the work in progress short, and close the file of guests."""
        self._time.close()
        self._file.close()

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        """Return the behaviour of ``host`` for ``guest``; tests override it to add faults."""
        return chosen(self.conf.fake_driver, host, guest)

    def order_behaviour(self, host: str, order: GuestOrder, action: Action) -> Behaviour:  # noqa: ARG002
        """Return the behaviour of ``host`` for an order to ``action`` a guest; tests override it to add faults."""
        return chosen_for_order(self.conf.fake_driver, host, rebuild=action == "rebuild")

    def die(self, host: str, seconds: float) -> None:
        """Make a host dead for some seconds: it is silent, its spawns in progress fail, and its guests stay."""
        self._require(host)
        LOG.warning("Host %s is dead for %g s", host, seconds)
        self._time.die(host, seconds)

    def come_to_end(self, host: str) -> None:
        """End the spawns in progress on a host now, with the result that they would have had later."""
        self._require(host)
        self._time.come_to_end(host)

    def hosts(self) -> Sequence[HostReport]:
        """Return the description of every host."""
        return list(self._hosts.values())

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """Set a host's provider tree to the layout of the options."""
        self._require(host.service_host)
        self._layout.update(host, tree)

    def alive(self) -> Collection[str]:
        """Return every host that is not dead."""
        return [host for host in self._hosts if not self._time.is_dead(host)]

    def has_host(self, host: str) -> bool:
        """Return whether ``host`` is one of the driver's."""
        return host in self._hosts

    def is_alive(self, host: str) -> bool:
        """Return whether ``host`` is one of the driver's, and not dead."""
        return host in self._hosts and not self._time.is_dead(host)

    def admit(self, host: str, guest: GuestSpec) -> None:
        """Refuse a guest if the behaviour of the host is to refuse."""
        self._reach(host, "admit")
        if (refusal := self.behaviour(host, guest).refusal) is not None:
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=refusal)

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Record the guest, wait for the duration of a spawn, and then let it run or fail."""
        self._reach(host, "spawn")
        made = _guest(host, guest)
        # Register the spawn before the guest is in the file: a destroy that finds the guest can then cut it short.
        with self._time.at_work(host, guest.attempt_id) as work:
            if self._file.begin(made, self._layout.capacity):
                return
            behaviour = self.behaviour(host, guest)
            fault = self._pass_time(work, behaviour)
        if fault is not None:
            kind = errors.BuildImpossible if behaviour.is_final else errors.BuildFailed
            raise kind(instance_uuid=guest.instance_uuid, host=host, reason=fault)
        self._file.finish(made)

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:  # noqa: ARG002
        """Remove the guest of an attempt, and cut its spawn short."""
        self._reach(host, "destroy")
        if self._time.is_stubborn(host, attempt_id):
            raise errors.RequestInProgress(request_id=attempt_id)
        # The file first: it checks the claim, so that the spawn of another claim's guest is not cut short.
        self._file.destroy(host, attempt_id, claim_id)
        self._time.cut_short(host, attempt_id)

    def stop_guest(self, host: str, order: GuestOrder) -> None:
        """Record that a guest does not run; it keeps its amounts."""
        self._carry_out(host, order, "stop")

    def start_guest(self, host: str, order: GuestOrder) -> None:
        """Record that a guest runs."""
        self._carry_out(host, order, "start")

    def rebuild_guest(self, host: str, order: GuestOrder, image: Image) -> None:  # noqa: ARG002
        """Wait for the duration of a spawn, and then let the guest run or fail; it does not run meanwhile."""
        self._carry_out(host, order, "rebuild")

    def guests(self, host: str) -> Sequence[Guest]:
        """Return the guests on a host, stopped and half-made ones included."""
        self._require(host)
        return self._file.guests(host)

    def unfinished(self, host: str) -> Collection[str]:
        """Return the attempts on a host whose guests are half made."""
        self._require(host)
        return self._file.unfinished(host)

    def stopped(self, host: str) -> Collection[str]:
        """Return the attempts on a host whose guests were stopped, or are being rebuilt."""
        self._require(host)
        return self._file.stopped(host)

    def _carry_out(self, host: str, order: GuestOrder, action: Action) -> None:
        self._reach(host, f"{action}_guest")
        with self._time.at_work(host, order.attempt_id) as work:
            if self._file.begin_order(host, order, action):
                return
            fault = self._pass_time(work, self.order_behaviour(host, order, action))
        if fault is None and not self._file.finish_order(host, order, action):
            fault = "it was destroyed meanwhile"
        if fault is not None:
            raise errors.GuestActionFailed(instance_uuid=order.instance_uuid, host=host, action=action, reason=fault)

    def _pass_time(self, work: Work, behaviour: Behaviour) -> str | None:
        """Wait for the duration of some work; return the reason of its failure, or None."""
        if behaviour.dead_seconds:
            self.die(work.host, behaviour.dead_seconds)
        return self._time.pass_time(work, behaviour.seconds, stubborn=behaviour.stubborn) or behaviour.fault

    def _require(self, host: str) -> None:
        if host not in self._hosts:
            raise errors.HostNotFound(name=host)

    def _reach(self, host: str, what: str) -> None:
        self._require(host)
        if self._time.is_dead(host):
            raise errors.NoReply(topic=f"host {host}", method=what, seconds=0.0)

    def _unknown_guests(self) -> Iterator[Guest]:
        """Yield guests without a record in any cell, distributed over the hosts: the same ones at every start."""
        for number, host in enumerate(islice(cycle(self._hosts), self.conf.fake_driver.stranger_guests), 1):
            names = {
                name: ids.derived("fake-stranger", self.cell_name, self.agent, number, name)
                for name in ("instance_uuid", "attempt_id", "claim_id")
            }
            yield Guest(host=host, resources={VCPU: 1}, **names)

    def _check(self) -> None:
        """Refuse hosts that no cell would take: their agent would start and repeat a refused report for ever.

        :raises ConfigurationError: the description of a host, or the tree of the last one, is not valid.
        """
        # The trees are alike, and the last one has the longest names.
        request_id, tree = ids.fresh(), ProviderTree()
        [*_, last] = self._hosts.values()
        self._layout.update(last, tree)
        described = compare(last, ProviderTree(), tree).reports
        try:
            for host in self._hosts.values():
                message = ReportHostsInCell(request_id=request_id, agent=self.agent, hosts=(host,))
                decode_strictly(ReportHostsInCell, encode(message))
            decode_strictly(ReportProviders, encode(ReportProviders(request_id=request_id, providers=described)))
        except errors.InvalidRequest as fault:
            raise errors.ConfigurationError(
                reason=f"[fake_driver] describes hosts that no cell takes: {fault}"
            ) from fault

    def _describe(self, host: str) -> HostReport:
        return HostReport(
            service_host=host,
            nodename=host,
            # Derived from its name and its cell: it stays the same if the file is lost, like the uuid of a mainboard.
            compute_node_uuid=ids.derived("fake-node", self.cell_name, host),
            agent=self.agent,
            availability_zone=self.conf.fake_driver.availability_zone,
            attributes=self._attributes.of(host),
        )


def _guest(host: str, guest: GuestSpec) -> Guest:
    return Guest(
        instance_uuid=guest.instance_uuid,
        host=host,
        attempt_id=guest.attempt_id,
        claim_id=guest.claim_id,
        resources=guest.resources,
    )
