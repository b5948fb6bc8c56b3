"""Run the examples of docs/rpc.md, which do not import Moorage, against a cloud on real servers."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.forked_cloud import ForkedCloud

EXAMPLES = Path(__file__).parents[3] / "docs/examples/rpc"


@pytest.fixture
def cloud(migrated_url: str, rabbitmq_url: str) -> Iterator[ForkedCloud]:
    with ForkedCloud(rabbitmq_url, migrated_url) as begun:
        begun.start_services(hosts=3)
        yield begun


def audit(cloud: ForkedCloud) -> tuple[int, list[tuple[str, str]]]:
    done = cloud.run("audit", "--settle", "0.1", "-f", "json", check=False)
    return done.returncode, [(row["finding"], row["detail"]) for row in json.loads(done.stdout)]


def test_callers_without_moorage_claim_swap_and_release_and_the_audit_finds_no_leak(
    cloud: ForkedCloud, rabbitmq_url: str
) -> None:
    with_kombu = subprocess.run(
        [sys.executable, str(EXAMPLES / "claim_with_kombu.py"), rabbitmq_url.replace("rabbit://", "amqp://")],
        text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert with_kombu.returncode == 0, with_kombu.stderr
    assert re.fullmatch(
        r"claimed \S+, and not twice: True\nreleased\nrefused: NoValidHost: 1 instance.*\n", with_kombu.stdout
    )

    caller = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "claim_with_oslo_messaging.py"), rabbitmq_url],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert caller.stdout is not None
        printed = [caller.stdout.readline() for _ in range(3)]
        while_held = audit(cloud)
        out, err = caller.communicate("\n", timeout=60)
    finally:
        caller.kill()
        caller.wait()

    assert [line.partition(" ")[0] for line in printed] == ["claimed", "accepted", "swapped"], (printed, err)
    assert while_held == (0, [])
    assert out.endswith("released\n")
    assert audit(cloud) == (0, [])
