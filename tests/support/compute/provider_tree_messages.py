"""The messages of an agent about provider trees, and the errors that its tracker logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compute import tracker
from moorage.messages import ListProviderTreesInCell, ReportProviderTree, ReshapeProviderTree
from support.compute.builders import AgentUnderTest

DEVICES = {"hosts": 2, "numa_nodes": 2, "gpus": 2, "nics": 1}
PROVIDER_MESSAGES = (ListProviderTreesInCell, ReportProviderTree, ReshapeProviderTree)


def provider_methods(stage: AgentUnderTest) -> list[str]:
    with stage.cell.lock:
        return [message.method for message in stage.cell.messages if isinstance(message, PROVIDER_MESSAGES)]


def restart_with_more_vcpus(stage: AgentUnderTest) -> None:
    """Restart the agent with the same hosts, each with one VCPU more."""
    stage.restart(vcpus=17)


@contextmanager
def tracker_errors(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect the errors that the tracker logs in the block."""
    found: list[str] = []
    with caplog.at_level(logging.ERROR, logger=tracker.__name__):
        yield found
        found.extend(record.getMessage() for record in caplog.records if record.name == tracker.__name__)
