"""A private MariaDB cluster with Galera: three nodes, used like a single server of :mod:`harness.servers`.

A node can be killed, started again, and cut off from the other nodes while clients still reach it, like a network fault
between the machines of a cluster.
"""

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

import psutil
import pymysql

from harness.cluster_nodes import NODES, Cluster, wait_for_nodes
from harness.servers import USER, MariaDBServer, ServersMissing, finish, free_ports

#: Debian's package galera-4 installs it there.
_PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
_SYNCED = "Synced"
_POSITION = re.compile(r"Recovered position: (\S+:-?\d+)")
#: Started by root, the daemon of rsync that receives a copy would switch to the user nobody.
_RSYNC = """#!/bin/sh
for argument; do
    case "$argument" in */rsync_sst.conf) sed -i "1i uid = $(id -u)\\ngid = $(id -g)" "$argument" ;; esac
done
exec /usr/bin/rsync "$@"
"""


class GaleraNode(MariaDBServer):
    """A node of a Galera cluster; all nodes have the same user and password."""

    package = "mariadb-server galera-4"

    def __init__(self, *options: str) -> None:
        super().__init__(*options)
        self.group_port, self._increments_port, self._copy_port = free_ports(3)
        self._bootstraps = False
        self._members: Sequence[GaleraNode] = ()

    def join(self, members: Sequence["GaleraNode"], password: str) -> None:
        """Set the nodes of the cluster; must be called before the first start."""
        self._members, self.password = members, password

    def bootstrap(self) -> None:
        """Start this node as the first of a cluster, on its data if it has any."""
        self._bootstraps = True
        try:
            self.start()
        finally:
            self._bootstraps = False

    def status(self, name: str) -> str:
        """Return a status variable of Galera; empty if the node does not answer."""
        try:
            rows = self.execute("SHOW GLOBAL STATUS LIKE %s", name)
        except pymysql.err.MySQLError:
            return ""
        return str(rows[0][1]) if rows else ""

    def is_synced(self) -> bool:
        """Return whether the node belongs to a majority and has all data of the cluster."""
        return self.status("wsrep_local_state_comment") == _SYNCED and self.status("wsrep_ready") == "ON"

    def set_cut_off(self, is_cut_off: bool) -> None:
        """Stop all traffic with the other nodes, or resume it; clients still reach the node."""
        self.execute(f"SET GLOBAL wsrep_provider_options = 'gmcast.isolate={int(is_cut_off)}'")

    def last_position(self) -> str:
        """Return the position of a stopped node's data in the replication, as the cluster's uuid and a number."""
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
        # The server looks for its own programs first. The method has a name of its own, so that it finds this `rsync`.
        method = f'#!/bin/sh\nPATH="{folder}:$PATH" exec wsrep_sst_rsync "$@"\n'
        for name, text in (("rsync", _RSYNC), ("wsrep_sst_private", method)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)
        self.places = [str(folder)]

    def _launch(self) -> psutil.Popen:
        # As Debian's service does: after a crash the state file has no position, and the node would copy everything.
        known = Path(self.tempdir, "data", "grastate.dat").exists()
        self._position = [f"--wsrep-start-position={self.last_position()}"] if known else []
        return super()._launch()

    def _cluster_options(self) -> list[str]:
        # A node that starts a new cluster on old data lists no node; a node that rejoins lists all nodes, including
        # itself.
        members = "" if self._bootstraps else ",".join(f"127.0.0.1:{node.group_port}" for node in self._members)
        provider = {
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self._increments_port}",
            "gcache.size": "64M",  # lets a node that rejoins get missed writes without a copy of all data
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


class GaleraCluster(Cluster[GaleraNode]):
    """Three private MariaDB nodes with Galera, which a service reaches with one URL that has three hosts.

    ``options`` are those of mariadbd, for every node.
    """

    def __init__(self, *options: str) -> None:
        self.nodes = [GaleraNode(*options) for _ in range(NODES)]
        self.password = secrets.token_hex(8)
        for node in self.nodes:
            node.join(self.nodes, self.password)

    def create_database(self, name: str) -> str:
        """Create an empty database, after dropping any of that name; returns its URL with all hosts."""
        self.drop_database(name)
        self.execute(f"CREATE DATABASE `{name}`")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and end its connections on each node."""
        for node in self.running():
            node.end_connections(name)
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def url(self, database: str) -> str:
        """Return the URL of a database, with all nodes as hosts."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"mysql+pymysql://{USER}:{self.password}@{hosts}/{database}?charset=utf8mb4"

    def execute(self, statement: str, *values: object) -> tuple[tuple[object, ...], ...]:
        """Execute one statement on the first node that belongs to the cluster, and commit."""
        node = next(node for node in self.running() if node.is_synced())
        return node.execute(statement, *values)

    def wait_whole(self) -> None:
        """Wait until all running nodes are synced, in one cluster.

        :raises TimeoutError: the nodes are not synced within two minutes.
        """
        running = self.running()
        size = str(len(running))
        wait_for_nodes(
            lambda: all(node.is_synced() and node.status("wsrep_cluster_size") == size for node in running),
            "all running nodes to be synced",
        )

    def _reconnect(self, node: GaleraNode) -> None:
        node.set_cut_off(False)

    def _begin(self, node: GaleraNode) -> None:
        node.bootstrap()
        wait_for_nodes(node.is_synced, "the first node to be synced")

    def _rejoin(self, node: GaleraNode) -> None:
        if self.running():
            node.start()
            wait_for_nodes(node.is_synced, "a node to be synced")
        else:
            self._restart(node)

    def _restart(self, node: GaleraNode) -> None:
        """Start a node while no other node runs.

        :raises RuntimeError: another node has newer data, so that node must be the first.
        """
        positions = self._positions()
        if positions[self.nodes.index(node)] < max(positions):
            raise RuntimeError(f"start node {positions.index(max(positions))} first: the positions are {positions}")
        node.declare_safe_to_bootstrap()
        self._begin(node)

    def _positions(self) -> list[int]:
        return [int(node.last_position().rpartition(":")[2]) for node in self.nodes]

    def restart_all(self) -> None:
        """Start all nodes again after all have died, beginning with the one that has the newest data.

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
