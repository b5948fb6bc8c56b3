"""A private RabbitMQ cluster: three nodes, used like a single server of :mod:`harness.servers`.

A node can be killed, started again, and cut off from the other nodes while its clients still reach it.
"""

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from harness.cluster_nodes import NODES, Cluster, wait_for_nodes
from harness.servers import MAPPER, MAPPER_READY, USER, RabbitMQServer, finish


class RabbitMQNode(RabbitMQServer):
    """A node of a RabbitMQ cluster: all share a cookie, and a port mapper through which they find each other."""

    has_mapper = False

    def join(self, members: Sequence["RabbitMQNode"], password: str, cookie: str) -> None:
        """Set the nodes of the cluster before the first start; the first node starts the port mapper."""
        self._members, self.password, self._cookie = members, password, cookie
        self._mapper_port = members[0]._mapper_port  # noqa: SLF001  # of this class

    def is_member(self) -> bool:
        """Return whether the node runs and belongs to a majority of the nodes."""
        needed = len(self._members) // 2 + 1
        try:
            self.evaluate(f"true = length(rabbit_nodes:all_running()) >= {needed}")
        except RuntimeError:
            return False
        return True

    def set_cut_off(self, is_cut_off: bool) -> None:
        """End the connections to the other nodes and refuse new ones, or admit them again; clients still reach it.

        A node admits every node that has its cookie. For a cut, it expects another cookie from the other nodes.
        """
        others = ", ".join(f"'{node.nodename}'" for node in self._members if node is not self)
        cookie = "cut_off" if is_cut_off else self._cookie
        disconnect = ", erlang:disconnect_node(N)" if is_cut_off else ""
        self.evaluate(f"[begin erlang:set_cookie(N, '{cookie}'){disconnect} end || N <- [{others}]], ok")

    def _prepare(self, directory: Path) -> None:
        super()._prepare(directory)
        # Three nodes on one machine: a waiting scheduler of Erlang must not keep a processor busy.
        self.env["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += " +sbwt none +sbwtdcpu none +sbwtdio none"
        members = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {node.nodename}\n"
            for number, node in enumerate(self._members, 1)
        )
        with (directory / "rabbitmq.conf").open("a") as file:
            # A node in a minority closes its clients' connections, so that these connect to another node.
            file.write(
                "cluster_formation.peer_discovery_backend = classic_config\n"
                f"{members}cluster_partition_handling = pause_minority\n"
            )

    def _start_mapper(self) -> None:
        """Start the cluster's port mapper, which keeps running when this node ends."""
        if not any(node.has_mapper for node in self._members):
            self._shared_mapper = self._run(*MAPPER, wait_for_line=MAPPER_READY)
            self.has_mapper = True

    def close(self) -> None:
        """Kill the node and, if this node started it, the port mapper; remove the node's data."""
        if self.has_mapper:
            finish(self._shared_mapper, signal.SIGKILL)
            self.has_mapper = False
        super().close()


class RabbitMQCluster(Cluster[RabbitMQNode]):
    """Three private RabbitMQ nodes; its URLs name all of them, and ask for queues that are replicated on a majority."""

    def __init__(self) -> None:
        self.nodes = [RabbitMQNode() for _ in range(NODES)]
        self.password = secrets.token_hex(8)
        self._cookie = secrets.token_hex(10).upper()
        for node in self.nodes:
            node.join(self.nodes, self.password, self._cookie)

    @property
    def url(self) -> str:
        """The URL of the default virtual host."""
        return self.url_of("moorage")

    def url_of(self, vhost: str) -> str:
        """Return the URL of a virtual host, with all nodes as hosts, and with quorum queues."""
        hosts = ",".join(f"{USER}:{self.password}@127.0.0.1:{node.port}" for node in self.nodes)
        return f"rabbit://{hosts}/{vhost}?rabbit_quorum_queue=true"

    def add_vhost(self, name: str) -> str:
        """Create a virtual host on which the user has all permissions; returns its URL."""
        self.running()[0].add_vhost(name)
        return self.url_of(name)

    def wait_whole(self) -> None:
        """Wait until each running node belongs to a majority.

        :raises TimeoutError: the nodes have not joined within two minutes.
        """
        wait_for_nodes(lambda: all(node.is_member() for node in self.running()), "all nodes to be with a majority")

    def _reconnect(self, node: RabbitMQNode) -> None:
        node.set_cut_off(False)
