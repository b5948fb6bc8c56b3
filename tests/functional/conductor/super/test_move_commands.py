"""Test the operator's commands for existing servers and for their migrations."""

from typing import Any

import pytest
from support.conductor.builders import CELL_1, host_state, node
from support.conductor.moving_world import MovingWorld
from support.processes.stopwatch import Stopwatch

from conductor.commands.instance import InstanceBuildCommand
from moorage import ids
from moorage.cli.shell import main
from moorage.messages import BuildInstances


def test_a_server_is_migrated_and_confirmed_resized_and_reverted_by_command(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()

    status, [row] = moorage("instance", "migrate", uuid, "--host", "c", "--wait")
    assert (status, row["state"], row["source"], row["destination"]) == (0, "moved", "a", "c")
    assert moorage("migration", "list") == (0, [row])
    _status, shown = moorage("migration", "show", row["uuid"])
    assert (shown["holds"], shown["kind"], shown["instance"]) == (node("a"), "cold-migration", uuid)
    _status, shown = moorage("instance", "show", uuid)
    assert shown["migration"] == row["uuid"]
    status, [instance] = moorage("instance", "confirm", uuid, "--wait")
    assert (status, instance["state"], instance["host"]) == (0, "active", "c")
    assert moorage("migration", "list") == (0, [])
    assert moorage("migration", "list", "--all", "--instance", uuid)[1][0]["state"] == "confirmed"

    status, [row] = moorage("instance", "resize", uuid, "--vcpus", "8", "--wait")
    assert status == 0
    flavor = world.show(uuid).flavor
    assert (flavor.vcpus, flavor.memory_mb) == (8, 1024)
    assert moorage("instance", "revert", uuid, "--wait")[0] == 0


def test_the_request_id_of_a_move_is_derived_from_the_given_id_as_the_help_says(
    world: MovingWorld, moorage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    uuid = world.active()

    status, [row] = moorage("instance", "migrate", uuid, "--request-id", "given", "--wait")

    assert status == 0
    derived = ids.derived("given", "order", uuid)
    assert moorage("migration", "show", row["uuid"])[1]["request_id"] == derived
    with world.records.engine.connect() as connection:
        query = "SELECT request_id FROM conductor_operations WHERE kind = 'move'"
        assert connection.exec_driver_sql(query).scalars().all() == [derived], "the id of all log lines of its steps"
    for command in ("migrate", "attach-resource"):
        assert main(["instance", command, "--help"]) == 0
        assert "Log lines have an id that is derived from it" in " ".join(capsys.readouterr().out.split())


def test_a_deletion_by_names_that_was_interrupted_is_completed_by_repeating_the_command(
    world: MovingWorld, moorage: Any
) -> None:
    size = ("--vcpus", "1", "--memory-mb", "1024")
    _status, built = moorage("instance", "build", *size, "--name", "web", "--count", "2", "--wait")
    assert moorage("instance", "delete", "web-1", "--wait")[0] == 0

    status, rows = moorage("instance", "delete", "web-1", "web-2", "--wait")

    assert (status, [row["state"] for row in rows]) == (0, ["deleted", "deleted"])
    assert [row["uuid"] for row in rows] == [row["uuid"] for row in built]
    assert moorage("instance", "delete", "web")[0] == 1
    _status, [again] = moorage("instance", "build", *size, "--name", "web-1", "--wait")
    assert moorage("instance", "delete", "web-1", "--wait")[1][0]["uuid"] == again["uuid"], "the one that exists"


def test_a_resize_gives_and_takes_extra_specs_and_leaves_the_others(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()

    def resized(*words: str) -> tuple[int, dict[str, str]]:
        assert moorage("instance", "resize", uuid, *words, "--wait")[0] == 0
        assert moorage("instance", "confirm", uuid, "--wait")[0] == 0
        flavor = world.show(uuid).flavor
        return flavor.vcpus, dict(flavor.extra_specs)

    two_given = ("--extra-spec", "hw:cpu_policy=dedicated", "--extra-spec", "resources:VGPU=1")
    assert resized(*two_given) == (1, {"hw:cpu_policy": "dedicated", "resources:VGPU": "1"})
    one_taken = ("--vcpus", "2", "--extra-spec", "resources:VGPU=2", "--unset-extra-spec", "hw:cpu_policy")
    assert resized(*one_taken) == (2, {"resources:VGPU": "2"})
    for words in (
        ("--unset-extra-spec", "hw:cpu_policy"),
        ("--unset-extra-spec", "resources:VGPU", "--extra-spec", "resources:VGPU=3"),
    ):
        assert moorage("instance", "resize", uuid, *words)[0] == 1, words
    assert world.show(uuid).state == "active"


def test_a_resize_to_the_present_size_is_refused_and_one_that_has_been_done_is_repeated(
    world: MovingWorld, moorage: Any
) -> None:
    uuid = world.active()
    order = ("instance", "resize", uuid, "--vcpus", "2", "--extra-spec", "a=b")
    _status, [first] = moorage(*order, "--request-id", "r", "--wait")
    assert moorage("instance", "confirm", uuid, "--wait")[0] == 0

    assert moorage(*order)[0] == 1

    assert world.show(uuid).state == "active"
    assert moorage(*order, "--request-id", "r")[1][0]["uuid"] == first["uuid"]
    assert len(world.migrations()) == 1


def test_a_resize_that_has_removed_an_extra_spec_is_repeated_with_its_request_id(
    world: MovingWorld, moorage: Any
) -> None:
    uuid = world.active()
    for words in (("--extra-spec", "hw:cpu_policy=dedicated"), ("--unset-extra-spec", "hw:cpu_policy")):
        order = ("instance", "resize", uuid, *words, "--request-id", f"r{words[1]}")
        _status, [first] = moorage(*order, "--wait")
        assert moorage("instance", "confirm", uuid, "--wait")[0] == 0

    status, [again] = moorage(*order)

    assert (status, again["uuid"]) == (0, first["uuid"])
    assert world.show(uuid).flavor.extra_specs == {}
    assert len(world.migrations()) == 2


def test_several_servers_are_evacuated_by_command_and_one_order_repeated_orders_nothing_more(
    world: MovingWorld, moorage: Any
) -> None:
    uuids = [world.active(), world.active()]
    assert moorage("instance", "evacuate", *uuids)[0] == 1
    world.scheduler.states = [host_state("a", forced_down=True), host_state("b")]

    first = moorage("instance", "evacuate", *uuids, "--request-id", "r")
    again = moorage("instance", "evacuate", *uuids, "--request-id", "r")

    assert [row["kind"] for row in first[1]] == ["evacuation"] * 2
    assert [row["uuid"] for row in first[1]] == [row["uuid"] for row in again[1]]
    assert len(world.migrations()) == 2


def test_a_server_is_shelved_unshelved_and_rebuilt_by_command(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()

    assert moorage("instance", "shelve", uuid, "--wait")[1][0]["state"] == "shelved"
    status, [row] = moorage("instance", "unshelve", uuid, "--host", "b", "--wait")
    assert (status, row["state"], row["host"]) == (0, "active", "b")
    assert moorage("instance", "rebuild", uuid, "--image", "other", "--wait")[0] == 0
    assert world.cell.instances[uuid].spec.image.id == "other"


def test_a_refused_or_failed_command_ends_with_an_exit_status_and_a_reason(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()
    for words in (
        ("instance", "confirm", uuid),
        ("instance", "revert", uuid),
        ("instance", "abort", uuid),
        ("instance", "unshelve", uuid),
        ("instance", "evacuate", uuid),
        ("instance", "resize", uuid),
        ("instance", "live-migrate", uuid, "--host", "a"),
        ("instance", "migrate", ids.fresh()),
        ("migration", "show", ids.fresh()),
    ):
        assert moorage(*words)[0] == 1, words
    world.scheduler.hosts = []

    status, [row] = moorage("instance", "migrate", uuid, "--wait")

    assert (status, row["state"]) == (1, "failed")
    assert "no hosts" in row["reason"]
    assert moorage("migration", "show", row["uuid"])[0] == 0
    assert CELL_1.name == moorage("migration", "show", row["uuid"])[1]["cell"]


def test_a_command_does_not_wait_for_a_build_whose_instance_is_deleted(
    world: MovingWorld, moorage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = InstanceBuildCommand.order

    def order_and_delete(self: InstanceBuildCommand, message: BuildInstances) -> Any:
        answer = order(self, message)
        world.delete(message.instance_uuids[0])
        return answer

    monkeypatch.setattr(InstanceBuildCommand, "order", order_and_delete)
    watch, size = Stopwatch(), ("--vcpus", "1", "--memory-mb", "1024")

    status, [row] = moorage("instance", "build", *size, "--wait", "--wait-timeout", "15")

    assert (status, row["state"]) == (1, "deleted")
    assert watch.seconds < 15
