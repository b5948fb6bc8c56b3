"""Private servers and clusters of them, for as long as a fixture lives."""

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster
from harness.servers import MariaDBServer, RabbitMQServer, ServersMissing

S = TypeVar("S", MariaDBServer, RabbitMQServer, GaleraCluster, RabbitMQCluster)


def run(server: Callable[[], S]) -> Iterator[S]:
    """Run a server for as long as its fixture lives; without it, skip at home and fail where CI=true."""
    private = server()
    try:
        try:
            private.start()
        except ServersMissing as missing:
            absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            absent(f"{missing} (.ci/install-servers does it)")
        yield private
    finally:
        private.close()
