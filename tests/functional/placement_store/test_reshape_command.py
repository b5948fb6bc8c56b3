"""Test reshapes of hosts by a file: a dry run, each host atomically, and a run that continues an interrupted one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cli.operator import Operator, operator

from moorage import failpoints, ids

__all__ = ["operator"]

RESHAPE = "resource provider reshape"


def entry(host: str, **more: Any) -> dict[str, Any]:
    """Return an entry that moves the 8 VGPU of a flat host to two new children, 4 to each."""
    children = [f"{host}_gpu{number}" for number in (0, 1)]
    return {
        "instructions": [
            {"from_resource_provider": host, "moved_resources": {"VGPU": 4}, "to_resource_provider": child}
            for child in children
        ],
        "providers": [
            {"name": child, "parent": host, "inventories": {"VGPU": {"max_unit": 4}}, "traits": ["CUSTOM_GPU"]}
            for child in children
        ],
        **more,
    }


class Fleet:
    """Flat hosts with 8 VCPU and 8 VGPU each, and their consumers."""

    def __init__(self, operator: Operator, folder: Path) -> None:
        self.operator = operator
        self.uuids: dict[str, str] = {}
        self._folder = folder
        operator.does("trait create CUSTOM_GPU")
        for host in ("host1", "host2", "host3"):
            self.uuids[host] = operator.types("resource provider create", host)["uuid"]
            operator.types(f"resource provider inventory set {host} --resource VCPU=8 --resource VGPU=8")

    def file(self, *entries: dict[str, Any], name: str = "fleet.yaml") -> str:
        path = self._folder / name
        path.write_text(yaml.safe_dump({"reshape": list(entries)}, sort_keys=False))
        return str(path)

    def hold(self, host: str, vgpus: int) -> str:
        """Create a consumer of one VCPU and some VGPU of a flat host; return its uuid."""
        consumer = ids.fresh()
        words = f"--allocation rp={host},VCPU=1,VGPU={vgpus} --project-id p --user-id u"
        self.operator.types(f"resource provider allocation set {consumer} {words}")
        return consumer

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return the allocations of a consumer, by the name of the provider."""
        names = {row["uuid"]: row["name"] for row in self.operator.types("resource provider list")}
        rows = self.operator.types(f"resource provider allocation show {consumer}")
        return {names[row["resource_provider"]]: row["resources"] for row in rows}

    def use(self, host: str) -> dict[str, dict[str, tuple[int, int]]]:
        """Return usage and capacity of each inventory of a tree, by the name of the provider."""
        return {
            row["name"]: {name: (part["used"], part["capacity"]) for name, part in row["inventories"].items()}
            for row in self.operator.types("resource provider tree", host)
        }


FLAT = {"VCPU": (0, 8), "VGPU": (0, 8)}


@pytest.fixture
def fleet(operator: Operator, tmp_path: Path) -> Fleet:
    return Fleet(operator, tmp_path)


def states(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["host"]: row["state"] for row in rows}


@pytest.mark.parametrize(
    "operator", ["bus", "directly", pytest.param("directly on mariadb", marks=pytest.mark.servers)], indirect=True
)
def test_a_flat_host_becomes_a_nested_one_with_its_allocations(operator: Operator, fleet: Fleet) -> None:
    consumers = [fleet.hold("host1", amount) for amount in (3, 2, 2, 1)]
    file = fleet.file(entry("host1"))

    plan = operator.types(RESHAPE, file, "--dry-run")
    assert fleet.use("host1") == {"host1": {"VCPU": (4, 8), "VGPU": (8, 8)}}, "a dry run changes nothing"
    changes = [(row["change"], row["provider"], row["before"], row["after"]) for row in plan if not row["consumer"]]
    assert len(changes) == 5
    assert set(changes) == {
        ("create", "host1_gpu0", None, "child of host1"),
        ("create", "host1_gpu1", None, "child of host1"),
        ("inventory", "host1", "8", None),
        ("inventory", "host1_gpu0", None, "4, max_unit=4"),
        ("inventory", "host1_gpu1", None, "4, max_unit=4"),
    }
    moves = {row["consumer"]: (row["change"], row["amount"], row["before"]) for row in plan if row["consumer"]}
    assert moves == {
        consumer: ("move", amount, "host1") for consumer, amount in zip(consumers, (3, 2, 2, 1), strict=True)
    }

    [row] = operator.types(RESHAPE, file)
    assert (row["state"], row["created"], row["allocations"]) == ("done", ["host1_gpu0", "host1_gpu1"], 4)
    assert fleet.use("host1") == {
        "host1": {"VCPU": (4, 8)},
        "host1_gpu0": {"VGPU": (4, 4)},
        "host1_gpu1": {"VGPU": (4, 4)},
    }
    for consumer, amount in zip(consumers, (3, 2, 2, 1), strict=True):
        held = fleet.held(consumer)
        assert held.pop("host1") == {"VCPU": 1}
        assert list(held.values()) == [{"VGPU": amount}]
    assert operator.types("resource provider trait list host1_gpu1") == [{"name": "CUSTOM_GPU"}]


def test_a_repeated_run_finds_moved_hosts_and_changes_nothing(operator: Operator, fleet: Fleet) -> None:
    file = fleet.file(entry("host1"), entry("host2"))
    operator.types(RESHAPE, fleet.file(entry("host1"), name="first.yaml"))
    before = operator.types("resource provider tree host1")
    assert states(operator.types(RESHAPE, file)) == {"host1": "moved before", "host2": "done"}
    assert states(operator.types(RESHAPE, file)) == {"host1": "moved before", "host2": "moved before"}
    assert operator.types("resource provider tree host1") == before
    [line] = operator.types(RESHAPE, fleet.file(entry("host1"), name="first.yaml"), "--dry-run")
    assert line["change"] == "moved before"


def test_a_host_that_was_moved_back_can_be_reshaped_again_with_the_same_file(operator: Operator, fleet: Fleet) -> None:
    file = fleet.file(entry("host1"))
    operator.types(RESHAPE, file)
    back = [
        {"from_resource_provider": f"host1_gpu{n}", "moved_resources": {"VGPU": 4}, "to_resource_provider": "host1"}
        for n in (0, 1)
    ]
    operator.types(RESHAPE, fleet.file({"instructions": back}, name="back.yaml"))
    assert fleet.use("host1")["host1"] == FLAT
    assert states(operator.types(RESHAPE, file)) == {"host1": "done"}
    assert fleet.use("host1")["host1_gpu0"] == {"VGPU": (0, 4)}


def test_one_refused_host_stops_the_run_unless_it_is_to_be_skipped(operator: Operator, fleet: Fleet) -> None:
    too_big = fleet.hold("host2", 5)
    file = fleet.file(entry("host1"), entry("host2"), entry("host3"))

    status, rows = operator.runs(RESHAPE, file)
    assert status == 1
    assert states(rows) == {"host1": "not begun", "host2": "refused", "host3": "not begun"}
    assert too_big in rows[1]["reason"]
    assert "Nothing was done" in operator.said.err
    assert [fleet.use(host) for host in ("host1", "host3")] == [{"host1": FLAT}, {"host3": FLAT}]
    assert operator.runs(RESHAPE, file, "--dry-run")[0] == 1

    status, rows = operator.runs(RESHAPE, file, "--skip-refused")
    assert status == 2
    assert states(rows) == {"host1": "done", "host2": "refused", "host3": "done"}
    assert fleet.use("host2") == {"host2": {"VCPU": (1, 8), "VGPU": (5, 8)}}

    status, rows = operator.runs(RESHAPE, file, "--skip-refused")
    assert status == 1, "nothing was done in this run"
    operator.does(f"resource provider allocation delete {too_big}")
    assert states(operator.types(RESHAPE, file)) == {"host1": "moved before", "host2": "done", "host3": "moved before"}


def test_consumers_are_moved_to_the_providers_that_the_file_names(operator: Operator, fleet: Fleet) -> None:
    consumers = [fleet.hold("host1", 1) for _ in range(3)]
    deals = [
        {
            "consumer_uuid": consumer,
            "from_resource_provider": "host1",
            "to_resource_provider": f"host1_gpu{number % 2}",
            "resources": {"VGPU": 1},
        }
        for number, consumer in enumerate(consumers)
    ]
    operator.types(RESHAPE, fleet.file(entry("host1", allocations=deals)))
    assert [sorted(fleet.held(consumer)) for consumer in consumers] == [
        ["host1", "host1_gpu0"],
        ["host1", "host1_gpu1"],
        ["host1", "host1_gpu0"],
    ]


def test_a_malformed_file_is_refused_with_line_numbers_before_any_change(
    operator: Operator, fleet: Fleet, tmp_path: Path
) -> None:
    bad = entry("host2")
    bad["instructions"][0]["moved_resources"]["VGPU"] = 0
    worse = entry("host3")
    del worse["instructions"]
    file = fleet.file(entry("host1"), bad, worse)
    lines = Path(file).read_text().splitlines()
    status, shown = operator.runs(RESHAPE, file)
    assert (status, shown) == (1, None)
    zero = lines.index("      VGPU: 0") + 1
    assert f"{file}:{zero}: Expected `int` >= 1" in operator.said.err
    assert "missing required field `instructions`" in operator.said.err
    assert fleet.use("host1") == {"host1": FLAT}

    assert operator.runs(RESHAPE, str(tmp_path / "none.yaml"))[0] == 1
    assert "No such file or directory. (moorage.invalid_request)" in operator.said.err


def test_a_missing_host_is_refused_and_stops_the_run(operator: Operator, fleet: Fleet) -> None:
    status, rows = operator.runs(RESHAPE, fleet.file(entry("host1"), entry("host4")))
    assert status == 1
    assert rows[1]["reason"] == "There is no resource provider host4."
    assert fleet.use("host1") == {"host1": FLAT}


def test_an_equal_amount_that_existed_before_is_not_taken_for_moved(operator: Operator, fleet: Fleet) -> None:
    operator.types("resource provider create host1_gpu0 --parent-provider host1")
    operator.types("resource provider inventory set host1_gpu0 --resource VGPU=4")
    move = entry("host1")["instructions"][:1]
    file = fleet.file({"instructions": move})
    status, [row] = operator.runs(RESHAPE, file)
    assert (status, row["state"]) == (1, "refused")
    assert "--again" in row["reason"]
    assert states(operator.types(RESHAPE, file, "--again")) == {"host1": "done"}
    assert fleet.use("host1") == {"host1": {"VCPU": (0, 8), "VGPU": (0, 4)}, "host1_gpu0": {"VGPU": (0, 8)}}


@pytest.mark.parametrize("operator", ["directly"], indirect=True)
@pytest.mark.parametrize("moment", ["commit", "committed"])
def test_a_run_that_was_killed_at_the_second_host_is_continued(operator: Operator, fleet: Fleet, moment: str) -> None:
    consumers = [fleet.hold(host, 4) for host in fleet.uuids]
    file = fleet.file(*map(entry, fleet.uuids))
    command = [sys.executable, "-m", "moorage.cli.shell", "--config-file", str(operator.config_file)]
    killed = subprocess.run(
        [*command, *RESHAPE.split(), file, *operator.words],
        env={**os.environ, failpoints.VARIABLE: f"serve.placement.reshape_by_instructions.{moment}=kill@2"},
        check=False,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    was_done = "moved before" if moment == "committed" else "done"
    assert states(operator.types(RESHAPE, file)) == {"host1": "moved before", "host2": was_done, "host3": "done"}
    for host, consumer in zip(fleet.uuids, consumers, strict=True):
        use = fleet.use(host)
        assert use.pop(host) == {"VCPU": (1, 8)}
        assert sorted(part["VGPU"] for part in use.values()) == [(0, 4), (4, 4)]
        assert sorted(fleet.held(consumer).values(), key=str) == [{"VCPU": 1}, {"VGPU": 4}]
