"""Private servers and clusters of them, which run as long as a fixture lives."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import pytest

from harness import memory_folders
from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster
from harness.servers import MariaDBServer, RabbitMQServer, ServerProcess, ServersMissing

_INSTALLED_BY = "(.ci/install-servers does it)"

#: Bytes that must be free for the files of the servers of all test processes.
_ROOM = 6 * 2**30

S = TypeVar("S", MariaDBServer, RabbitMQServer, GaleraCluster, RabbitMQCluster)


def run(server: Callable[[], S], *, in_memory: bool = False) -> Iterator[S]:
    """Run a server as long as its fixture lives; if its program is missing, skip the test, or fail it if CI=true.

    :param in_memory: keep the files of a single server in memory, if there is enough of it. A database syncs each
        table that it creates or drops to the disk.
    """
    private, folder = server(), None
    place = memory_folders.place(_ROOM) if in_memory else None
    if place is not None and isinstance(private, ServerProcess):
        memory_folders.remove_left(place)
        private.tmp_rootdir = folder = memory_folders.new(place)
    try:
        try:
            private.start()
        except ServersMissing as missing:
            absent(f"{missing} {_INSTALLED_BY}")
        yield private
    finally:
        private.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def program(name: str, package: str) -> str:
    """Return the path of a program of a Debian package; if it is missing, skip the test, or fail it if CI=true."""
    return shutil.which(name) or absent(
        f"there is no {name} here: install the Debian package {package} {_INSTALLED_BY}"
    )


def absent(reason: str) -> NoReturn:
    """Skip a test because something is missing, or fail it if CI=true."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    raise AssertionError
