"""Private clusters on one machine: three MariaDB nodes with Galera, and three RabbitMQ nodes.

Each offers what a single server of :mod:`harness.servers` does, so that a cloud runs on either. A node can be killed,
started again, and cut off from the other nodes while its clients still reach it, as by a fault of the network between
the machines of a cluster.
"""

import re
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

import psutil
import pymysql

from harness.servers import (
    MAPPER,
    MAPPER_READY,
    USER,
    MariaDBServer,
    RabbitMQServer,
    ServerProcess,
    ServersMissing,
    finish,
    free_ports,
)

#: The least number of which a majority is left when one is away.
NODES = 3
#: Seconds for a node to come back. One that has been away for long copies all data of another one.
_JOIN_SECONDS = 120.0
#: Debian's package galera-4 puts it there.
_PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
_SYNCED = "Synced"
_POSITION = re.compile(r"Recovered position: (\S+:-?\d+)")
#: The daemon of rsync that receives a copy would become the user nobody where it is root who starts it.
_RSYNC = """#!/bin/sh
for argument; do
    case "$argument" in */rsync_sst.conf) sed -i "1i uid = $(id -u)\\ngid = $(id -g)" "$argument" ;; esac
done
exec /usr/bin/rsync "$@"
"""

N = TypeVar("N", bound=ServerProcess)


class _Cluster(Generic[N]):
    """Nodes of one kind, known by their numbers from 0 on."""

    nodes: list[N]

    def start(self) -> None:
        """Start all nodes and wait until each takes part: the first one alone, because the others join it."""
        first, *others = self.nodes
        self._begin(first)
        for node in others:  # in turn: a node that gives its data to another one takes no orders meanwhile
            self._rejoin(node)

    def close(self) -> None:
        """End all nodes and remove their data."""
        for node in self.nodes:
            node.close()

    def kill(self, number: int) -> None:
        """End a node by SIGKILL, as a crash would."""
        self.nodes[number].kill()

    def stop(self, number: int) -> None:
        """Stop a node in order; the others know at once that it has left."""
        self.nodes[number].stop()

    def start_node(self, number: int) -> None:
        """Start a node again and wait until it takes part."""
        self._rejoin(self.nodes[number])

    def repair(self) -> None:
        """Start the nodes that were stopped or killed, end every cut, and wait until all take part."""
        for node in self.nodes:
            if not node.pid:
                self._rejoin(node)
            self._reconnect(node)
        self._wait_whole()

    def running(self) -> list[N]:
        """Return the nodes that have been started and neither stopped nor killed."""
        return [node for node in self.nodes if node.pid]

    def pids_by_name(self, name: str) -> dict[str, int]:
        """Return the ids of the nodes' processes, by this name and the node's number."""
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

    def _reconnect(self, node: N) -> None:
        """Let a running node exchange messages with the others."""
        raise NotImplementedError

    def _wait_whole(self) -> None:
        """Wait until all running nodes take part.

        :raises TimeoutError: they do not, within two minutes.
        """
        raise NotImplementedError

    def _begin(self, node: N) -> None:
        """Start the first node of a new cluster."""
        node.start()

    def _rejoin(self, node: N) -> None:
        """Start a node that joins the others, and wait until it takes part."""
        node.start()


def _wait(true: Callable[[], bool], what: str, seconds: float = _JOIN_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.1)


# --- MariaDB with Galera --------------------------------------------------------------------------------------------


class GaleraNode(MariaDBServer):
    """A node of a Galera cluster; all of a cluster have one user and password."""

    package = "mariadb-server galera-4"

    def __init__(self, *options: str) -> None:
        super().__init__(*options)
        self.group_port, self._increments_port, self._copy_port = free_ports(3)
        self._bootstraps = False
        self._members: Sequence[GaleraNode] = ()

    def join(self, members: Sequence["GaleraNode"], password: str) -> None:
        """Name the nodes of the cluster; before the first start."""
        self._members, self.password = members, password

    def bootstrap(self) -> None:
        """Start this node as the first of a cluster, on its data if it has any."""
        self._bootstraps = True
        try:
            self.start()
        finally:
            self._bootstraps = False

    def status(self, name: str) -> str:
        """Return a status variable of Galera; empty where the node does not answer."""
        try:
            rows = self.execute("SHOW GLOBAL STATUS LIKE %s", name)
        except pymysql.err.MySQLError:
            return ""
        return str(rows[0][1]) if rows else ""

    def is_synced(self) -> bool:
        """Return whether the node takes part in a majority and has all that the cluster has."""
        return self.status("wsrep_local_state_comment") == _SYNCED and self.status("wsrep_ready") == "ON"

    def set_cut_off(self, is_cut_off: bool) -> None:
        """Stop all exchange with the other nodes, or resume it; clients still reach the node."""
        self.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(is_cut_off)}'")

    def last_position(self) -> str:
        """Return how far the data of a stopped node have come, as the cluster's uuid and a number."""
        found: list[str] = []

        def note(_name: str, _pid: int, line: bytes) -> None:
            if match := _POSITION.search(line.decode(errors="replace")):
                found.append(match[1])

        self._log_output = note
        try:
            options = [*self._cluster_options(), "--socket=socket", "--wsrep-recover"]
            recovering = self._run("mariadbd", *self._places, *options, wait_for_line=_POSITION.pattern)
            finish(recovering, None)
        finally:
            del self._log_output
        return found[-1]

    def declare_safe_to_bootstrap(self) -> None:
        """Record that no other node has more data than this one."""
        file = Path(self.tempdir, "data", "grastate.dat")
        file.write_text(file.read_text().replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))

    def _prepare(self, directory: Path) -> None:
        if not _PROVIDER.exists():
            raise ServersMissing(f"there is no {_PROVIDER} here: install the Debian package galera-4")
        super()._prepare(directory)
        folder = directory / "programs"
        folder.mkdir()
        # The server looks for its own programs first: the method has another name, so that this `rsync` is found.
        method = f'#!/bin/sh\nPATH="{folder}:$PATH" exec wsrep_sst_rsync "$@"\n'
        for name, text in (("rsync", _RSYNC), ("wsrep_sst_private", method)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)
        self.places = [str(folder)]

    def _launch(self) -> psutil.Popen:
        # As Debian's service does: after a crash the file of the position has none, and the node would copy everything.
        known = Path(self.tempdir, "data", "grastate.dat").exists()
        self._position = [f"--wsrep-start-position={self.last_position()}"] if known else []
        return super()._launch()

    def _cluster_options(self) -> list[str]:
        # One that starts a new cluster on old data names nobody; one that comes back names all, itself included.
        members = "" if self._bootstraps else ",".join(f"127.0.0.1:{node.group_port}" for node in self._members)
        provider = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self._increments_port}",
            "gcache.size": "64M",  # what a node that comes back may have missed without a copy of all data
        }
        return [
            "--wsrep-on=ON", f"--wsrep-provider={_PROVIDER}", f"--wsrep-cluster-address=gcomm://{members}",
            "--wsrep-cluster-name=moorage", f"--wsrep-node-name=node-{self.port}",
            f"--wsrep-node-address=127.0.0.1:{self.group_port}",
            "--wsrep-sst-method=private", f"--wsrep-sst-receive-address=127.0.0.1:{self._copy_port}",
            f"--wsrep-provider-options={';'.join(f'{name}={value}' for name, value in provider.items())}",
            "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
        ]  # fmt: skip

    def _options(self) -> list[str]:
        return [*self._cluster_options(), *self._position, *self.options]


class GaleraCluster(_Cluster[GaleraNode]):
    """Three private MariaDB nodes with Galera, which a service reaches under one URL with three hosts.

    Options are mariadbd's, for every node.
    """

    package: ClassVar[str] = GaleraNode.package

    def __init__(self, *options: str) -> None:
        self.nodes = [GaleraNode(*options) for _ in range(NODES)]
        self.password = secrets.token_hex(8)
        for node in self.nodes:
            node.join(self.nodes, self.password)

    def create_database(self, name: str) -> str:
        """Create an empty database, dropping one of that name first; returns its URL with all hosts."""
        self.drop_database(name)
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, ending the connections which are still in it, on each node."""
        for node in self.running():
            node.end_connections(name)
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def end_connections(self, name: str) -> None:
        """End the connections which are in a database, on each node."""
        for node in self.running():
            node.end_connections(name)

    def url(self, database: str) -> str:
        """Return the URL of a database, with all nodes as hosts."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"mysql+pymysql://{USER}:{self.password}@{hosts}/{database}?charset=utf8mb4"

    def execute(self, statement: str, *values: object) -> tuple[tuple[object, ...], ...]:
        """Execute one statement on the first node that takes part, and commit."""
        node = next(node for node in self.running() if node.is_synced())
        return node.execute(statement, *values)

    def wait_synced(self) -> None:
        """Wait until all running nodes are synced, in one cluster.

        :raises TimeoutError: they are not, within two minutes.
        """
        running = self.running()
        size = str(len(running))
        _wait(
            lambda: all(node.is_synced() and node.status("wsrep_cluster_size") == size for node in running),
            "all running nodes to be synced",
        )

    def _reconnect(self, node: GaleraNode) -> None:
        node.set_cut_off(False)

    def _wait_whole(self) -> None:
        self.wait_synced()

    def _begin(self, node: GaleraNode) -> None:
        node.bootstrap()
        _wait(node.is_synced, "the first node to be synced")

    def _rejoin(self, node: GaleraNode) -> None:
        if self.running():
            node.start()
            _wait(node.is_synced, "a node to be synced")
        else:
            self._restart(node)

    def _restart(self, node: GaleraNode) -> None:
        """Start a node while no other one runs.

        :raises RuntimeError: another node has come further: that one has to be the first.
        """
        positions = self._positions()
        if positions[self.nodes.index(node)] < max(positions):
            raise RuntimeError(f"start node {positions.index(max(positions))} first: the positions are {positions}")
        node.declare_safe_to_bootstrap()
        self._begin(node)

    def _positions(self) -> list[int]:
        return [int(node.last_position().rpartition(":")[2]) for node in self.nodes]

    def restart_all(self) -> None:
        """Start all nodes again after all have died, first the one that has come furthest.

        :raises RuntimeError: a node still runs.
        """
        if self.running():
            raise RuntimeError("a node still runs: start the others one by one")
        positions = self._positions()
        first = self.nodes[positions.index(max(positions))]
        first.declare_safe_to_bootstrap()
        self._begin(first)
        for node in self.nodes:
            if node is not first:
                self._rejoin(node)


# --- RabbitMQ -------------------------------------------------------------------------------------------------------


class RabbitMQNode(RabbitMQServer):
    """A node of a RabbitMQ cluster: all share a port mapper, through which they find each other, and a cookie."""

    has_mapper = False

    def join(self, members: Sequence["RabbitMQNode"], password: str, cookie: str) -> None:
        """Name the nodes of the cluster, the first of which starts the port mapper; before the first start."""
        self._members, self.password, self._cookie = members, password, cookie
        self._mapper_port = members[0]._mapper_port  # noqa: SLF001  # of this class

    def is_member(self) -> bool:
        """Return whether the node runs together with a majority of the nodes."""
        needed = len(self._members) // 2 + 1
        try:
            self.evaluate(f"true = length(rabbit_nodes:all_running()) >= {needed}")
        except RuntimeError:
            return False
        return True

    def set_cut_off(self, is_cut_off: bool) -> None:
        """End the connections to the other nodes and refuse new ones, or admit them again; clients still get through.

        A node admits whoever has its cookie: for the others it expects another one meanwhile.
        """
        others = ", ".join(f"'{node.nodename}'" for node in self._members if node is not self)
        cookie = "cut_off" if is_cut_off else self._cookie
        disconnect = ", erlang:disconnect_node(N)" if is_cut_off else ""
        self.evaluate(f"[begin erlang:set_cookie(N, '{cookie}'){disconnect} end || N <- [{others}]], ok")

    def _prepare(self, directory: Path) -> None:
        super()._prepare(directory)
        cookie = directory / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        # Three on one machine: a scheduler of Erlang that waits is not to keep a processor busy meanwhile.
        self.env["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += " +sbwt none +sbwtdcpu none +sbwtdio none"
        members = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {node.nodename}\n"
            for number, node in enumerate(self._members, 1)
        )
        with (directory / "rabbitmq.conf").open("a") as file:
            # A node that is in a minority ends its clients' connections: they go to another one.
            file.write(
                "cluster_formation.peer_discovery_backend = classic_config\n"
                f"{members}cluster_partition_handling = pause_minority\n"
            )

    def _start_mapper(self) -> None:
        """Start the cluster's port mapper, which outlives the node that starts it."""
        if not any(node.has_mapper for node in self._members):
            self._shared_mapper = self._run(*MAPPER, wait_for_line=MAPPER_READY)
            self.has_mapper = True

    def close(self) -> None:
        """End the node and, if this one has started it, the port mapper, and remove the node's data."""
        if self.has_mapper:
            finish(self._shared_mapper, signal.SIGKILL)
            self.has_mapper = False
        super().close()


class RabbitMQCluster(_Cluster[RabbitMQNode]):
    """Three private RabbitMQ nodes; its URLs name all of them, and have each queue on a majority of them."""

    package: ClassVar[str] = RabbitMQNode.package

    def __init__(self) -> None:
        self.nodes = [RabbitMQNode() for _ in range(NODES)]
        self.password = secrets.token_hex(8)
        self._cookie = secrets.token_hex(10).upper()
        for node in self.nodes:
            node.join(self.nodes, self.password, self._cookie)

    @property
    def url(self) -> str:
        """The URL of the virtual host that is there from the beginning."""
        return self.url_of("moorage")

    def url_of(self, vhost: str) -> str:
        """Return the URL of a virtual host, with all nodes as hosts, and with quorum queues."""
        hosts = ",".join(f"{USER}:{self.password}@127.0.0.1:{node.port}" for node in self.nodes)
        return f"rabbit://{hosts}/{vhost}?rabbit_quorum_queue=true"

    def add_vhost(self, name: str) -> str:
        """Create a virtual host that the user may do anything in; returns its URL."""
        [url] = self.add_vhosts([name])
        return url

    def add_vhosts(self, names: Sequence[str]) -> list[str]:
        """Create virtual hosts that the user may do anything in; returns their URLs."""
        self.running()[0].add_vhosts(names)
        return [self.url_of(name) for name in names]

    def add_user(self, name: str, password: str, vhosts: Sequence[str]) -> None:
        """Create a user who may do anything in these virtual hosts, and nothing in others."""
        self.running()[0].add_user(name, password, vhosts)

    def wait_joined(self) -> None:
        """Wait until each running node is with a majority.

        :raises TimeoutError: they are not, within two minutes.
        """
        _wait(lambda: all(node.is_member() for node in self.running()), "all running nodes to be with a majority")

    def _reconnect(self, node: RabbitMQNode) -> None:
        node.set_cut_off(False)

    def _wait_whole(self) -> None:
        self.wait_joined()
