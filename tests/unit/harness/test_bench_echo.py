"""The benchmark of bare RPC writes only its result."""

import logging
from collections.abc import Iterator

import pytest

from harness.bench import echo

from oslo_messaging._drivers import amqpdriver, pool

_LOGS = (logging.getLogger("amqp"), amqpdriver.LOG, pool.LOG.logger)


@pytest.fixture
def levels() -> Iterator[None]:
    before = [log.level for log in _LOGS]
    yield
    for log, level in zip(_LOGS, before, strict=True):
        log.setLevel(level)


@pytest.mark.usefixtures("levels")
def test_the_librarys_warnings_about_many_connections_are_not_shown() -> None:
    echo._silence_warnings()
    assert not any(log.isEnabledFor(logging.WARNING) for log in (amqpdriver.LOG, pool.LOG))
