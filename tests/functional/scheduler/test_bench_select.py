"""Test `moorage bench select` in one process, on a few hosts."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from harness.arguments import Servers
from harness.bench.cloud import BenchCloud, running
from harness.bench.requests import Request
from harness.bench.store import host_settings, occupy
from harness.cloud import CloudSpec
from moorage import errors
from moorage.cli.shell import main


def test_the_output_has_the_options_and_the_measured_claims(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ["--hosts", "120", "--occupancy", "50", "--groups", "0.5", "--nested", "--schedulers", "2"]
    assert main(["bench", "select", *shape, "--clients", "2", "--seconds", "2", "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["schedulers"], figures["occupancy"], figures["groups"]) == (2, 50.0, 0.5)
    assert figures["nested"] is True
    assert figures["claims_per_s"] > 0
    assert figures["conflicts"] >= 0
    assert (figures["refused"], figures["overcommitted"], figures["leaked"]) == ({}, 0, 0)


def test_groups_need_a_host_for_each_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "select", "--hosts", "5", "--groups", "1"]) != 0
    assert "give at least that --hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["echo"], "there is no broker to measure: give --servers or --transport-url"),
        (["echo", "--transport-url", "inproc://"], "which inproc:// does not connect: name a broker"),
        (["select", "--transport-url", "inproc://", "--database-url", "sqlite://"], "does not connect: name a broker"),
        (["select", "--transport-url", "rabbit://"], "give --transport-url and --database-url together"),
        (["select", "--servers", "--database-url", "sqlite://"], "--servers starts servers of its own"),
    ],
)
def test_contradictory_servers_are_refused_with_the_reason(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) != 0
    assert sentence in capsys.readouterr().err


@pytest.fixture
def cloud() -> Iterator[BenchCloud]:
    """A cloud whose scheduler does not follow the change feed."""
    settings = {
        "fake_driver": host_settings(100.0, nested=False),
        "scheduler": {"view_max_age": 3600.0, "view_compare_interval": 3600.0, "host_down_after": 86400.0},
    }
    with running(Servers(), replace(CloudSpec(), hosts=2, settings=settings)) as cloud:
        yield cloud


def test_a_claim_that_the_store_refuses_counts_as_a_conflict(cloud: BenchCloud) -> None:
    scheduler, request = cloud.client("scheduler"), Request(alternates=0)
    with cloud.conflicts() as conflicts:
        scheduler.call(request.message())
        assert conflicts() == 0
        cloud.stop_agents()
        # The rest of each host is allocated, which the scheduler does not see.
        with pytest.raises(errors.CapacityExceeded):
            occupy(cloud.database, 100.0)
        occupy(cloud.database, 99.0)
        with pytest.raises(errors.NoValidHost):
            scheduler.call(Request(per_request=9, alternates=0).message())
        assert conflicts() > 0
