"""Sessions of the published command-line client: `openstack` with the plugin osc-placement."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Self

import pytest
from support.http.api import Api, served

from moorage import ids

HOST, POOL, CONSUMER, PROJECT = (ids.derived("client", name) for name in ("host", "pool", "consumer", "project"))


#: Runs the client's own entry point for each line of words: to start Python thirty times takes minutes.
_SESSION = """
import contextlib, io, json, sys
from openstackclient.shell import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(json.loads(line))
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""


class Client:
    """The command line of an operator whose cloud's Placement endpoint is ours."""

    def __init__(self, url: str, version: str) -> None:
        self._common = ["--os-auth-type", "admin_token", "--os-endpoint", url, "--os-token", "admin"]
        self._common += ["--os-placement-api-version", version]

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SESSION],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def does(self, *words: str) -> str:
        self._process.stdin.write(json.dumps([*self._common, *" ".join(words).split()]) + "\n")
        self._process.stdin.flush()
        status, out, err = json.loads(self._process.stdout.readline())
        assert status == 0, (words, err)
        return str(out)

    def shows(self, *words: str) -> Any:
        return json.loads(self.does(*words, "-f json"))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("client")
    with served(f"sqlite:///{folder}/main.sqlite", folder / "log", "--workers", "1", "--threads", "2") as api:
        yield api


def test_an_operator_works_with_the_client_that_he_has(api: Api) -> None:
    with Client(api.url, "1.39") as client:
        whole_session(client, api)


def whole_session(client: Client, api: Api) -> None:
    # Providers and a tree.
    host = client.shows("resource provider create --uuid", HOST, "host1")
    assert (host["name"], host["generation"], host["root_provider_uuid"]) == ("host1", 0, HOST)
    gpu = client.shows("resource provider create gpu --parent-provider", HOST)["uuid"]
    client.does("resource provider create --uuid", POOL, "pool")
    assert client.shows("resource provider set", gpu, "--name gpu0 --parent-provider", HOST)["name"] == "gpu0"
    assert {one["name"] for one in client.shows("resource provider list --in-tree", gpu)} == {"host1", "gpu0"}
    # What they have.
    client.does("resource class create CUSTOM_GPU_SLOT")
    assert "CUSTOM_GPU_SLOT" in {one["name"] for one in client.shows("resource class list")}
    inventories = client.shows(
        "resource provider inventory set", HOST, "--resource VCPU=8 --resource VCPU:allocation_ratio=2.0",
        "--resource MEMORY_MB=4096 --resource MEMORY_MB:reserved=512",
    )  # fmt: skip
    assert {one["resource_class"]: (one["total"], one["allocation_ratio"]) for one in inventories} == {
        "VCPU": (8, 2.0),
        "MEMORY_MB": (4096, 1.0),
    }
    client.does("resource provider inventory set", gpu, "--resource CUSTOM_GPU_SLOT=2")
    client.does("resource provider inventory class set", gpu, "CUSTOM_GPU_SLOT --total 4")
    client.does("resource provider inventory set", POOL, "--resource DISK_GB=1000")
    client.does("trait create CUSTOM_FAST")
    client.does("resource provider trait set", gpu, "--trait CUSTOM_FAST")
    client.does("resource provider trait set", POOL, "--trait MISC_SHARES_VIA_AGGREGATE")
    aggregate = ids.fresh()
    for provider in (HOST, POOL):
        generation = client.shows("resource provider show", provider)["generation"]
        client.does("resource provider aggregate set", provider, f"--aggregate {aggregate} --generation {generation}")
    assert client.shows("resource provider aggregate list", HOST) == [{"uuid": aggregate}]
    assert {one["name"] for one in client.shows("resource provider list --required CUSTOM_FAST")} == {"gpu0"}
    assert {one["uuid"] for one in client.shows("resource provider list --member-of", aggregate)} == {HOST, POOL}

    # What may be allocated, with a group of its own for the device.
    candidates = client.shows(
        "allocation candidate list --resource VCPU=2 --resource MEMORY_MB=1024 --resource DISK_GB=20",
        "--group 1 --resource CUSTOM_GPU_SLOT=1 --required CUSTOM_FAST --group-policy isolate --limit 10",
    )
    assert {one["resource provider"] for one in candidates} == {HOST, POOL, gpu}

    # What is allocated.
    client.does(
        f"resource provider allocation set {CONSUMER} --project-id {PROJECT} --user-id user --consumer-type INSTANCE",
        f"--allocation rp={HOST},VCPU=2,MEMORY_MB=1024 --allocation rp={POOL},DISK_GB=20",
        f"--allocation rp={gpu},CUSTOM_GPU_SLOT=1",
    )
    assert api.store.held(CONSUMER) == {
        HOST: {"VCPU": 2, "MEMORY_MB": 1024},
        POOL: {"DISK_GB": 20},
        gpu: {"CUSTOM_GPU_SLOT": 1},
    }
    used = {one["resource_class"]: one["usage"] for one in client.shows("resource provider usage show", HOST)}
    assert used == {"VCPU": 2, "MEMORY_MB": 1024}
    assert "DISK_GB" in client.does("resource usage show", PROJECT)
    client.does(f"resource provider allocation unset {CONSUMER} --provider {gpu}")
    left = {one["resource_provider"] for one in client.shows("resource provider allocation show", CONSUMER)}
    assert left == {HOST, POOL}

    # And away again.
    client.does("resource provider allocation delete", CONSUMER)
    client.does("resource provider inventory delete", HOST)
    client.does("resource provider trait delete", gpu)
    client.does("trait delete CUSTOM_FAST")
    for provider in (gpu, HOST, POOL):
        client.does("resource provider delete", provider)
    assert client.shows("resource provider list") == []


def test_a_client_that_asks_for_nothing_newer_gets_what_it_knows(api: Api) -> None:
    with Client(api.url, "1.0") as client:
        created = client.shows("resource provider create old")
        assert set(created) == {"uuid", "name", "generation"}
        client.does("resource provider inventory set", created["uuid"], "--resource VCPU=8")
        assert client.shows("resource provider inventory list", created["uuid"])[0]["total"] == 8
        client.does("resource provider delete", created["uuid"])
