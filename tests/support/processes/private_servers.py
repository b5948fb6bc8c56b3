"""Private servers and clusters of them, which run as long as a fixture lives."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import pytest

from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster
from harness.servers import MariaDBServer, RabbitMQServer, ServersMissing

_INSTALLED_BY = "(.ci/install-servers does it)"

S = TypeVar("S", MariaDBServer, RabbitMQServer, GaleraCluster, RabbitMQCluster)


def run(server: Callable[[], S]) -> Iterator[S]:
    """Run a server as long as its fixture lives; if its program is missing, skip the test, or fail it if CI=true."""
    private = server()
    try:
        try:
            private.start()
        except ServersMissing as missing:
            absent(f"{missing} {_INSTALLED_BY}")
        yield private
    finally:
        private.close()


def program(name: str, package: str) -> str:
    """Return the path of a program of a Debian package; if it is missing, skip the test, or fail it if CI=true."""
    return shutil.which(name) or absent(
        f"there is no {name} here: install the Debian package {package} {_INSTALLED_BY}"
    )


def absent(reason: str) -> NoReturn:
    """Skip a test because something is missing, or fail it if CI=true."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    raise AssertionError
