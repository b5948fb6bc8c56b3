"""Clusters for the tests of this folder: started for the first test that asks for one, whole again after each."""

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster
from harness.servers import ServersMissing

C = TypeVar("C", GaleraCluster, RabbitMQCluster)


def _run(cluster: C) -> Iterator[C]:
    """Run a cluster for as long as its fixture lives; without it, skip at home and fail where CI=true."""
    try:
        try:
            cluster.start()
        except ServersMissing as missing:
            absent = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            absent(f"{missing} (.ci/install-servers does it)")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def session_galera() -> Iterator[GaleraCluster]:
    """One Galera cluster for the whole session."""
    yield from _run(GaleraCluster("innodb_flush_log_at_trx_commit=2"))


@pytest.fixture(scope="session")
def session_rabbitmq_cluster() -> Iterator[RabbitMQCluster]:
    """One RabbitMQ cluster for the whole session."""
    yield from _run(RabbitMQCluster())


@pytest.fixture
def galera(session_galera: GaleraCluster) -> Iterator[GaleraCluster]:
    """A cluster of three nodes; those that the test has killed run again afterwards."""
    yield session_galera
    session_galera.repair()


@pytest.fixture
def rabbitmq_cluster(session_rabbitmq_cluster: RabbitMQCluster) -> Iterator[RabbitMQCluster]:
    """A cluster of three nodes; those that the test has killed run again afterwards."""
    yield session_rabbitmq_cluster
    session_rabbitmq_cluster.repair()
