"""A driver whose hosts and guests are records in a file; it also documents what is expected of a real one.

What a real driver has in common with it:

* **Guests outlive the agent.** They are in a file of their own. A restarted agent finds them, with the attempt and the
  claim they were started under; an attempt that is repeated finds its guest running.
* **A host has only what it has.** It counts its guests, half-made ones included, and refuses one more than it can
  carry, without asking anybody. It never refuses a guest whose claim was in order: where it does, somebody
  over-committed it, or released what a guest still held.
* **A guest begins to hold its amounts before it runs,** and holds them until it is destroyed. A spawn that fails may
  leave pieces behind: the agent destroys them before it reports the failure.
* **Destroyed means destroyed.** An attempt that was destroyed, begun or not, is never started afterwards.
* **Nothing is destroyed but by name:** the attempt and its claim. A guest that nobody names stays.

What it does badly is chosen by options, and in one method, :meth:`FakeDriver.behaviour`, for tests that want more.
"""

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from oslo_config import cfg

from compute.driver import Driver, GuestSpec
from compute.guest_file import GuestFile
from moorage import errors, ids
from moorage.model import DISK_GB, MEMORY_MB, VCPU, Guest, HostReport, Inventory, ProviderReport


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a host does with one attempt."""

    #: Why it does not even accept the claim.
    refusal: str | None = None
    #: How long its spawn takes.
    seconds: float = 0.0
    #: Why its spawn then fails.
    fault: str | None = None


def chance(seed: int, instance_uuid: str, host: str) -> float:
    """Return the draw, in [0, 1), that decides whether an instance fails on a host: the same on every run."""
    drawn = hashlib.sha256(f"{seed}/{instance_uuid}/{host}".encode()).digest()
    # 53 bits, as many as a float holds: more would round the largest draws up to 1.
    return float((int.from_bytes(drawn[:8], "big") >> 11) / 2**53)


class FakeDriver(Driver):
    """Plays as many hosts as ``[fake_driver] hosts`` says, all alike."""

    def __init__(self, conf: cfg.ConfigOpts, agent: str, cell_name: str) -> None:
        super().__init__(conf, agent, cell_name)
        options = conf.fake_driver
        prefix = options.host_prefix or agent
        self._inventories = _inventories(options)
        self._capacity = {name: inventory.capacity for name, inventory in self._inventories.items()}
        self._failing = frozenset(options.failing_hosts)
        self._refusing = frozenset(options.refusing_hosts)
        self._hosts = {
            name: self._describe(name) for name in (f"{prefix}-{n:04d}" for n in range(1, options.hosts + 1))
        }
        self._providers = [self._provider(report) for report in self._hosts.values()]
        self._file = GuestFile(Path(options.state_file or quote(f"moorage-fake-{cell_name}-{agent}.sqlite", safe=" ")))

    def start(self) -> None:
        """Open the file of guests.

        :raises ConfigurationError: it cannot be opened.
        """
        self._file.open()

    def close(self) -> None:
        """Close the file of guests."""
        self._file.close()

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        """Say what ``host`` does with ``guest``; what a test overrides to have it behave worse."""
        options = self.conf.fake_driver
        fault = None
        if host in self._failing:
            fault = "every spawn fails here"
        elif chance(options.seed, guest.instance_uuid, host) < options.fail_rate:
            fault = "the guest did not start"
        return Behaviour(
            refusal="this host takes no guests" if host in self._refusing else None,
            seconds=options.spawn_seconds,
            fault=fault,
        )

    def hosts(self) -> Sequence[HostReport]:
        """Describe every host."""
        return list(self._hosts.values())

    def providers(self) -> Sequence[ProviderReport]:
        """Describe every host's compute node, which is all it has."""
        return list(self._providers)

    def alive(self) -> Collection[str]:
        """Return every host: the fake ones live as long as their agent."""
        return list(self._hosts)

    def has_host(self, host: str) -> bool:
        """Tell whether ``host`` is one of these."""
        return host in self._hosts

    def admit(self, host: str, guest: GuestSpec) -> None:
        """Refuse on hosts that are told to.

        :raises BuildFailed: the host is one of them.
        """
        self._require(host)
        if (refusal := self.behaviour(host, guest).refusal) is not None:
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=refusal)

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Write the guest down, take the time a spawn takes, and then let it run or fail.

        :raises BuildFailed: the spawn fails by choice, the host is full, or the attempt has been destroyed.
        """
        self._require(host)
        made = _guest(host, guest)
        if self._file.begin(made, self._capacity):
            return
        behaviour = self.behaviour(host, guest)
        if behaviour.seconds:
            time.sleep(behaviour.seconds)
        if behaviour.fault is not None:
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=behaviour.fault)
        self._file.finish(made)

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:  # noqa: ARG002
        """Strike the guest out; the attempt alone names it.

        :raises InvalidState: the attempt's guest was started under another claim.
        """
        self._require(host)
        self._file.destroy(host, attempt_id, claim_id)

    def guests(self, host: str) -> Sequence[Guest]:
        """Return the guests on a host, half-made ones included."""
        self._require(host)
        return self._file.guests(host)

    def _require(self, host: str) -> None:
        if host not in self._hosts:
            raise errors.HostNotFound(name=host)

    def _describe(self, host: str) -> HostReport:
        return HostReport(
            service_host=host,
            nodename=host,
            # Known by its name in its cell, as a machine by its board: the same after the file was lost.
            compute_node_uuid=ids.derived("fake-node", self.cell_name, host),
            agent=self.agent,
            availability_zone=self.conf.fake_driver.availability_zone,
        )

    def _provider(self, report: HostReport) -> ProviderReport:
        return ProviderReport(uuid=report.compute_node_uuid, name=report.nodename, inventories=self._inventories)


def _inventories(options: cfg.ConfigOpts.GroupAttr) -> dict[str, Inventory]:
    totals = {VCPU: options.vcpus, MEMORY_MB: options.memory_mb, DISK_GB: options.disk_gb}
    ratios = {VCPU: options.vcpu_allocation_ratio}
    # Nobody may have more than the whole machine, however far it is over-booked (Nova's max_unit).
    return {
        name: Inventory(total=total, max_unit=total, allocation_ratio=ratios.get(name, 1.0))
        for name, total in totals.items()
        if total
    }


def _guest(host: str, guest: GuestSpec) -> Guest:
    return Guest(
        instance_uuid=guest.instance_uuid,
        host=host,
        attempt_id=guest.attempt_id,
        claim_id=guest.claim_id,
        resources=guest.resources,
    )
