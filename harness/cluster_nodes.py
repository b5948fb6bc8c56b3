"""The base of private clusters on one machine: three nodes, each of which can be killed and brought back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from harness.servers import ServerProcess
from harness.waiting import wait_until

#: The smallest number of nodes of which a majority remains when one node is down.
NODES = 3
#: Seconds for a node to rejoin. A node that was down for long copies all data of another node.
_JOIN_SECONDS = 120.0

N = TypeVar("N", bound=ServerProcess)


@dataclass(frozen=True)
class Member(Generic[N]):
    """A node of a cluster that can be killed and started again like a single server."""

    cluster: "Cluster[N]"
    number: int

    @property
    def package(self) -> str:
        """The Debian package of its server."""
        return self.cluster.nodes[self.number].package

    def kill(self) -> None:
        """Kill the node with SIGKILL, as a crash would."""
        self.cluster.kill(self.number)

    def start(self) -> None:
        """Start the node again, and wait until it has joined the cluster."""
        self.cluster.start_node(self.number)


class Cluster(ABC, Generic[N]):
    """Nodes of one kind, identified by their numbers from 0 on."""

    nodes: list[N]

    @property
    def members(self) -> Sequence[Member[N]]:
        """The parts that can be killed and started again one by one."""
        return [Member(self, number) for number in range(len(self.nodes))]

    def start(self) -> None:
        """Start all nodes and wait until each has joined: the first node alone, because the others join it."""
        first, *others = self.nodes
        self._begin(first)
        for node in others:  # one by one: a node executes no statements while it sends its data to another one
            self._rejoin(node)

    def close(self) -> None:
        """Kill all nodes and remove their data."""
        for node in self.nodes:
            node.close()

    def kill(self, number: int) -> None:
        """Kill a node with SIGKILL, as a crash would."""
        self.nodes[number].kill()

    def stop(self, number: int) -> None:
        """Stop a node cleanly; the others notice at once that it has left."""
        self.nodes[number].stop()

    def start_node(self, number: int) -> None:
        """Start a node again and wait until it has joined."""
        self._rejoin(self.nodes[number])

    def repair(self) -> None:
        """Start the nodes that were stopped or killed, end all network cuts, and wait until all have joined."""
        for node in self.nodes:
            if not node.pid:
                self._rejoin(node)
            self._reconnect(node)
        self.wait_whole()

    def running(self) -> list[N]:
        """Return the nodes that run: they were started, and not stopped or killed since."""
        return [node for node in self.nodes if node.pid]

    def pids_by_name(self, name: str) -> dict[str, int]:
        """Return the ids of the nodes' processes, named by ``name`` and the number of the node."""
        return {f"{name}-{number}": node.pid for number, node in enumerate(self.nodes)}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _reconnect(self, node: N) -> None:
        """Let a running node exchange messages with the others."""

    @abstractmethod
    def wait_whole(self) -> None:
        """Wait until all running nodes have joined.

        :raises TimeoutError: they have not joined within two minutes.
        """

    def _begin(self, node: N) -> None:
        """Start the first node of a new cluster."""
        node.start()

    def _rejoin(self, node: N) -> None:
        """Start a node that joins the others, and wait until it has joined."""
        node.start()


def wait_for_nodes(true: Callable[[], bool], what: str) -> None:
    """Wait until ``true`` returns true.

    :raises TimeoutError: it does not return true within two minutes.
    """
    wait_until(true, what, _JOIN_SECONDS, interval=0.1)
