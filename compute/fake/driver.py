"""A driver whose hosts and guests are records in a file; it also documents what is expected of a real one.

What a real driver has in common with it:

* **Guests outlive the agent.** They are in a file of their own. A restarted agent finds them, with the attempt and the
  claim they were started under; an attempt that is repeated finds its guest running.
* **A host has only what it has.** It counts its guests, half-made ones included, and refuses one more than it can
  carry, without asking anybody. It never refuses a guest whose claim was in order: where it does, somebody
  over-committed it, or released what a guest still held.
* **A guest begins to hold its amounts before it runs,** and holds them until it is destroyed. A spawn that fails may
  leave pieces behind: the agent destroys them before it reports the failure.
* **Destroyed means destroyed.** An attempt that was destroyed, begun or not, is never started afterwards. A spawn that
  is under way is cut short; one that cannot be has to come to its end first, and whoever destroys is told so.
* **Stopped means stopped.** A guest that was stopped holds what it held, and runs again when it is told to and not
  before: neither because its agent has started again, nor because its build is sent once more. What was ordered of it
  is carried out once, and not at all after a later order.
* **A moved guest is a guest.** It is spawned as any other, under an attempt of its own, and counted beside the old one
  also where both are on the same host.
* **Nothing is destroyed but by name:** the attempt and its claim. A guest that nobody names stays.

What it does badly is chosen by options, and in one method, :meth:`FakeDriver.behaviour`, for tests that want more.
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
from moorage import errors, ids
from moorage.model import VCPU, Guest, HostReport, Image

LOG = logging.getLogger(__name__)


class FakeDriver(Driver):
    """Plays as many hosts as ``[fake_driver] hosts`` says, all alike but for what they report of themselves.

    :raises ConfigurationError: an option is not what it should be.
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

    def start(self) -> None:
        """Open the file of guests, and put the strangers' in that were asked for.

        :raises ConfigurationError: it cannot be opened.
        """
        self._file.open()
        for guest in self._strangers():
            try:
                self._file.begin(guest, self._layout.capacity)
                self._file.finish(guest)
            except errors.BuildFailed as refusal:
                LOG.warning("There is no stranger's guest on host %s: %s", guest.host, refusal.reason)

    def close(self) -> None:
        """Cut short what is under way, and close the file of guests."""
        self._time.close()
        self._file.close()

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        """Say what ``host`` does with ``guest``; what a test overrides to have it behave worse."""
        return chosen(self.conf.fake_driver, host, guest)

    def order_behaviour(self, host: str, order: GuestOrder, action: Action) -> Behaviour:  # noqa: ARG002
        """Say what ``host`` does when it is to ``action`` a guest; what a test overrides to have it behave worse."""
        return chosen_for_order(self.conf.fake_driver, host, rebuild=action == "rebuild")

    def die(self, host: str, seconds: float) -> None:
        """Have a host dead for so long: it is silent, whatever is being spawned on it fails, and its guests stay."""
        self._require(host)
        LOG.warning("Host %s is dead for %g s", host, seconds)
        self._time.die(host, seconds)

    def hosts(self) -> Sequence[HostReport]:
        """Describe every host."""
        return list(self._hosts.values())

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """Describe a host's compute node and what is under it, as the options lay it out.

        :raises ReshapeNeeded: the tree has it on other providers.
        """
        self._require(host.service_host)
        self._layout.update(host, tree)

    def alive(self) -> Collection[str]:
        """Return every host that is not dead."""
        return [host for host in self._hosts if not self._time.is_dead(host)]

    def has_host(self, host: str) -> bool:
        """Return whether ``host`` is one of these."""
        return host in self._hosts

    def is_alive(self, host: str) -> bool:
        """Return whether ``host`` is one of these, and not dead."""
        return host in self._hosts and not self._time.is_dead(host)

    def admit(self, host: str, guest: GuestSpec) -> None:
        """Refuse on hosts that are told to.

        :raises BuildFailed: the host is one of them.
        :raises NoReply: it is dead.
        """
        self._reach(host, "admit")
        if (refusal := self.behaviour(host, guest).refusal) is not None:
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=refusal)

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Write the guest down, take the time a spawn takes, and then let it run or fail.

        :raises BuildFailed: the spawn fails by choice, the host is full or has died in the middle of it, or the attempt
            has been destroyed.
        :raises BuildImpossible: its image is broken.
        :raises NoReply: the host is dead.
        """
        self._reach(host, "spawn")
        made = _guest(host, guest)
        # Under way before it is in the file: whoever finds it there to destroy it can also cut it short.
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
        """Strike the guest out; the attempt alone names it.

        :raises RequestInProgress: its spawn is under way, and is one that cannot be cut short.
        :raises InvalidState: the attempt's guest was started under another claim.
        :raises NoReply: the host is dead.
        """
        self._reach(host, "destroy")
        if self._time.is_stubborn(host, attempt_id):
            raise errors.RequestInProgress(request_id=attempt_id)
        # First the file, which knows whose guest it is: the spawn of another claim's is not disturbed.
        self._file.destroy(host, attempt_id, claim_id)
        self._time.cut_short(host, attempt_id)

    def stop_guest(self, host: str, order: GuestOrder) -> None:
        """Note that a guest does not run; it holds what it held.

        :raises InvalidState: there is no such guest, or a later order.
        :raises GuestActionFailed: the host is stuck.
        :raises NoReply: it is dead.
        """
        self._carry_out(host, order, "stop")

    def start_guest(self, host: str, order: GuestOrder) -> None:
        """Note that a guest runs.

        :raises InvalidState: there is no such guest, or a later order.
        :raises GuestActionFailed: the host is stuck.
        :raises NoReply: it is dead.
        """
        self._carry_out(host, order, "start")

    def rebuild_guest(self, host: str, order: GuestOrder, image: Image) -> None:  # noqa: ARG002
        """Take the time a spawn takes, and then let the guest run or fail; it does not run meanwhile.

        :raises InvalidState: there is no such guest, or a later order.
        :raises GuestActionFailed: it fails by choice, or was destroyed or its host has died in the middle of it.
        :raises NoReply: the host is dead.
        """
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
        """Take the time that something takes; tell why it has failed, if it has."""
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

    def _strangers(self) -> Iterator[Guest]:
        """Return guests that no cell knows, dealt out to the hosts in turn: the same ones at every start."""
        for number, host in enumerate(islice(cycle(self._hosts), self.conf.fake_driver.stranger_guests), 1):
            names = {
                name: ids.derived("fake-stranger", self.cell_name, self.agent, number, name)
                for name in ("instance_uuid", "attempt_id", "claim_id")
            }
            yield Guest(host=host, resources={VCPU: 1}, **names)

    def _describe(self, host: str) -> HostReport:
        return HostReport(
            service_host=host,
            nodename=host,
            # Known by its name in its cell, as a machine by its board: the same after the file was lost.
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
