"""Test that orders to attach or detach which cannot be carried out are refused with a reason and change nothing."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs
from support.operations.port_room import (
    BANDWIDTH,
    PORT,
    WIDTH,
    Ports,
    at_failpoint,
    attach_under,
    bandwidth,
    delete,
    give,
)
from support.operations.room import Room

from moorage import errors, ids
from moorage.messages import (
    AttachResource,
    BuildInstances,
    DetachResource,
    GetAllocations,
    MigrateInstance,
    OperationBegun,
    RebuildInstance,
    ShelveInstance,
    ShowMigration,
)
from moorage.model import Image


def test_other_orders_are_refused_while_an_attachment_is_under_way(room: Room, ports: Ports, server: str) -> None:
    refused: list[str] = []

    def order_others() -> None:
        for kind, fields in (
            (ShelveInstance, {}),
            (RebuildInstance, {"image": Image(id="another")}),
            (AttachResource, {"suffix": "_port2", "group": bandwidth(100)}),
        ):
            with pytest.raises(errors.InvalidState, match=r"attach of instance .* is under way") as refusal:
                give(room, kind, server, **fields)
            refused.append(refusal.value.reason)
        ordered = give(room, MigrateInstance, server)
        room.until(lambda: room.ask(ShowMigration(uuid=ordered.migration_uuid)).state == "failed", "it to be refused")
        refused.append(str(room.ask(ShowMigration(uuid=ordered.migration_uuid)).reason))

    request_id = at_failpoint(room, "step.attach.write.begin", order_others)
    begun = attach_under(room, request_id, server)

    assert ports.ended(begun).state == "done"
    assert len(refused) == 4
    assert all(begun.operation_uuid in reason for reason in refused)
    seen = room.seen(server)
    assert (seen.server, seen.pending) == ("active on the source", ())


@pytest.mark.parametrize(
    ("path", "suffix", "group"),
    [
        ("$.suffix", "", bandwidth()),
        ("$.group.resources", PORT, bandwidth().__class__()),
        ("$.group.in_tree", PORT, bandwidth(in_tree=ids.derived("tests", "tree"))),
        ("$.group", PORT, bandwidth(any_of=(tuple(f"CUSTOM_{'X' * 240}_{number}" for number in range(2200)),))),
        ("$.group.forbidden", PORT, bandwidth(required=("HW_NIC_SRIOV",), forbidden=("HW_NIC_SRIOV",))),
        ("$.group.any_of", PORT, bandwidth(any_of=(("HW_NIC_SRIOV",),), forbidden=("HW_NIC_SRIOV",))),
        (
            "$.group.not_member_of",
            PORT,
            bandwidth(member_of=((ids.derived("tests", "a"),),), not_member_of=(ids.derived("tests", "a"),)),
        ),
    ],
)
def test_an_invalid_group_is_refused_with_the_path_of_the_invalid_field(
    room: Room, server: str, path: str, suffix: str, group: Any
) -> None:
    with pytest.raises(errors.InvalidRequest) as refusal:
        give(room, AttachResource, server, suffix=suffix, group=group)
    assert refusal.value.path == path


def test_attaching_an_existing_group_or_detaching_an_unknown_one_is_refused_and_changes_nothing(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    before = room.placement.call(GetAllocations(consumer_uuid=server))
    with pytest.raises(errors.AlreadyExists, match="resource group _port1"):
        ports.order(server)
    with pytest.raises(errors.NotFound, match="resource group _port2"):
        give(room, DetachResource, server, suffix="_port2")
    for kind, fields in ((AttachResource, {"group": bandwidth()}), (DetachResource, {})):
        with pytest.raises(errors.InstanceNotFound):
            give(room, kind, ids.fresh(), suffix=PORT, **fields)
    assert room.placement.call(GetAllocations(consumer_uuid=server)) == before


def test_the_name_of_a_group_of_the_flavor_cannot_be_used_for_an_attached_group(room: Room, ports: Ports) -> None:
    uuid, spec = ids.fresh(), room.spec("source")
    flavor = structs.replace(spec.flavor, extra_specs={f"resources1:{BANDWIDTH}": "100"})
    spec = structs.replace(spec, flavor=flavor)
    room.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
    room.becomes(uuid, "active")
    assert list(ports.held(uuid).values()) == [100]
    with pytest.raises(errors.AlreadyExists, match="resource group 1"):
        ports.order(uuid, "1")
    delete(room, uuid)


def test_a_repeated_order_is_carried_out_once(room: Room, ports: Ports, server: str) -> None:
    message = AttachResource(request_id=ids.fresh(), instance_uuid=server, suffix=PORT, group=bandwidth())
    begun = room.order(message)
    ports.ended(begun)

    assert room.order(message) == begun
    assert list(ports.held(server).values()) == [WIDTH]


def test_orders_to_attach_to_or_detach_from_a_deleted_server_are_refused(room: Room, ports: Ports) -> None:
    uuid = room.build()
    ports.attach(uuid)
    delete(room, uuid)
    assert room.show(uuid).attached == {}
    with pytest.raises(errors.InvalidState, match="is deleted; it has to be active"):
        ports.order(uuid, "_port2")
    with pytest.raises(errors.InvalidState, match="is deleted"):
        give(room, DetachResource, uuid, suffix=PORT)


def test_a_group_that_is_ordered_several_times_at_once_is_attached_once(room: Room, ports: Ports, server: str) -> None:
    def one(_number: int) -> OperationBegun | None:
        try:
            return ports.order(server)
        except (errors.InvalidState, errors.AlreadyExists, errors.StaleOrder):
            return None

    with ThreadPoolExecutor(4) as threads:
        [begun] = [answer for answer in threads.map(one, range(4)) if answer is not None]
    assert ports.ended(begun).state == "done"
    assert list(ports.held(server).values()) == [WIDTH]
