"""Clusters for the tests of this folder: started by the first test that needs one, and repaired after each test."""

from collections.abc import Iterator

import pytest
from support.processes import private_servers

from harness.galera import GaleraCluster
from harness.rabbitmq_cluster import RabbitMQCluster


@pytest.fixture(scope="session")
def session_galera() -> Iterator[GaleraCluster]:
    """One Galera cluster for the whole session."""
    yield from private_servers.run(lambda: GaleraCluster("innodb_flush_log_at_trx_commit=2"))


@pytest.fixture(scope="session")
def session_rabbitmq_cluster() -> Iterator[RabbitMQCluster]:
    """One RabbitMQ cluster for the whole session."""
    yield from private_servers.run(RabbitMQCluster)


@pytest.fixture
def galera(session_galera: GaleraCluster) -> Iterator[GaleraCluster]:
    """A cluster of three nodes; nodes that the test has killed are started again afterwards."""
    yield session_galera
    session_galera.repair()


@pytest.fixture
def rabbitmq_cluster(session_rabbitmq_cluster: RabbitMQCluster) -> Iterator[RabbitMQCluster]:
    """A cluster of three nodes; nodes that the test has killed are started again afterwards."""
    yield session_rabbitmq_cluster
    session_rabbitmq_cluster.repair()
