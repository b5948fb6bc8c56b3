"""Helpers for the tests of provider trees: the messages about providers, and the progress of a stage."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compute import tracker
from moorage.messages import ListProviderTreesInCell, ReportHostsInCell, ReportProviderTree, ReshapeProviderTree
from support.compute.builders import Stage, wait_until

DEVICES = {"hosts": 2, "numa_nodes": 2, "gpus": 2, "nics": 1}
PROVIDER_MESSAGES = (ListProviderTreesInCell, ReportProviderTree, ReshapeProviderTree)


def alive(stage: Stage) -> int:
    return sum(bool(said.alive) for said in stage.cell.said(ReportHostsInCell))


def until_alive(stage: Stage, reports: int = 1) -> None:
    """Wait until ``reports`` more reports have been processed."""
    before = alive(stage)
    wait_until(lambda: alive(stage) >= before + reports)


def of_providers(stage: Stage) -> list[str]:
    with stage.cell.lock:
        return [message.method for message in stage.cell.told if isinstance(message, PROVIDER_MESSAGES)]


def restarted_with_more(stage: Stage) -> None:
    """Restart the agent with the same hosts, each with one VCPU more."""
    stage.conf.set_override("vcpus", 17, group="fake_driver")
    stage.start()


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collect the errors that the tracker logs in the block."""
    found: list[str] = []
    with caplog.at_level(logging.ERROR, logger=tracker.__name__):
        yield found
        found.extend(record.getMessage() for record in caplog.records if record.name == tracker.__name__)
