"""Test the commands of the conductors, and that they do not start without their tables and cell."""

from pathlib import Path
from typing import Any

import pytest
from support.conductor.builders import FakePlacement, World, node

from conductor.service import CellConductor, SuperConductor
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options


def test_a_conductor_refuses_to_start_without_its_tables_or_its_cell(tmp_path: Path) -> None:
    conf = options.new(
        {
            "DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"},
            "database": {"connection": f"sqlite:///{tmp_path}/empty.sqlite"},
        }
    )
    with pytest.raises(errors.SchemaMismatch):
        SuperConductor(conf, "super").start()
    bus = Bus(conf)
    server = bus.server("placement", "fake", [FakePlacement()], 1)
    server.start()
    with pytest.raises(errors.SchemaMismatch):
        CellConductor(conf, "cell", "cell1").start()
    with pytest.raises(errors.CellNotFound):
        CellConductor(conf, "cell", "nowhere").start()
    bus.close()


SIZE = ("--vcpus", "1", "--memory-mb", "1024")


def test_instances_are_built_listed_shown_and_deleted_by_command(world: World, moorage: Any) -> None:
    world.agent.failing = {"a"}
    size = (*SIZE, "--request-id", "r")

    status, rows = moorage("instance", "build", *size, "--count", "2", "--wait")
    assert status == 0
    assert [(row["state"], row["host"], row["attempts"]) for row in rows] == [("active", "b", ["a", "b"])] * 2
    assert moorage("instance", "build", *size, "--count", "2")[1] == rows
    assert moorage("instance", "list") == (0, rows)
    uuid = rows[0]["uuid"]
    _status, shown = moorage("instance", "show", uuid)
    assert shown["attempt_1"].startswith("a, failed: a is broken (")
    assert shown["attempt_2"].startswith("b, active (")
    assert shown["holds"].startswith(node("b"))
    status, rows = moorage("instance", "delete", uuid, "--wait")
    assert (status, rows[0]["state"]) == (0, "deleted")
    assert len(moorage("instance", "list")[1]) == 1


def test_operations_are_listed_and_shown_by_command_and_an_unknown_one_is_an_error(world: World, moorage: Any) -> None:
    _status, built = moorage("instance", "build", *SIZE, "--wait")
    uuid = built[0]["uuid"]

    assert moorage("operation", "list") == (0, [])
    status, operations = moorage("operation", "list", "--all", "--instance", uuid)
    assert status == 0
    assert {(one["kind"], one["state"]) for one in operations} == {("build", "done")}
    for one in operations:
        status, shown = moorage("operation", "show", one["uuid"])
        assert (status, shown["uuid"], shown["step"]) == (0, one["uuid"], one["step"])
    assert moorage("operation", "show", ids.fresh())[0] == 1


def test_a_command_that_waits_for_a_failing_build_prints_the_reason_and_fails(world: World, moorage: Any) -> None:
    world.agent.failing = {"a", "b", "c"}

    status, rows = moorage("instance", "build", *SIZE, "--wait")

    assert status == 1
    assert rows[0]["state"] == "error"
    assert "c: c is broken" in rows[0]["reason"]
    assert moorage("instance", "build", *SIZE, "--count", "0")[0] == 1
    assert moorage("instance", "build", "--vcpus", "0", "--memory-mb", "1")[0] == 1
    assert moorage("instance", "show", ids.fresh())[0] == 1
