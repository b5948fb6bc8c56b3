"""Test resource groups that are attached to a running server: one provider of its host provides each."""

import pytest
from msgspec import structs
from support.operations.port_room import BANDWIDTH, PORT, WIDTH, Ports, bandwidth, delete, give
from support.operations.room import Room

from moorage import errors, ids
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import examine
from moorage.cli.clients import Clients
from moorage.messages import BuildInstances, DetachResource, GetAllocations, ListResourceProviders, PlanReshape
from moorage.model import MoveInstruction


def test_an_attached_group_holds_amounts_of_one_provider_until_it_is_detached(
    room: Room, ports: Ports, server: str
) -> None:
    before = room.placement.call(GetAllocations(consumer_uuid=server))

    assert ports.attach(server).state == "done"

    consumer = room.placement.call(GetAllocations(consumer_uuid=server))
    assert list(ports.held(server).values()) == [WIDTH]
    assert (consumer.claim_id, consumer.accepted_by) == (before.claim_id, before.accepted_by)
    [(name, attached)] = room.show(server).attached.items()
    assert (name, attached.resources) == (PORT, {BANDWIDTH: WIDTH})
    assert ports.nics()[str(attached.provider_uuid)] in ports.held(server)

    assert ports.detach(server).state == "done"

    after = room.placement.call(GetAllocations(consumer_uuid=server))
    assert after.allocations.keys() == before.allocations.keys()
    assert room.show(server).attached == {}
    assert ports.attach(server).state == "done", "the name of the group is free again"


def test_a_second_group_uses_the_provider_with_room_and_a_third_one_without_room_fails_and_holds_nothing(
    room: Room, ports: Ports, server: str
) -> None:
    assert ports.attach(server).state == ports.attach(server, "_port2").state == "done"
    assert sorted(ports.held(server)) == ["source 0", "source 1"]

    failed = ports.attach(server, "_port3")

    assert failed.state == "failed"
    where = f"no provider of host {room.hosts['source']}"
    assert failed.reason == f"{where} has room for {WIDTH} {BANDWIDTH}, as it is asked for"
    assert ports.held(server) == {"source 0": WIDTH, "source 1": WIDTH}
    assert sorted(room.show(server).attached) == [PORT, "_port2"]
    assert ports.detach(server).state == "done"
    assert len(ports.held(server)) == 1


def test_amounts_of_groups_on_one_provider_are_added_and_a_detach_subtracts_only_its_own(
    ports: Ports, server: str
) -> None:
    ports.take("source", 1, 1000)
    ports.attach(server, "a", 600)
    ports.attach(server, "b", 300)
    assert ports.held(server) == {"source 0": 900}

    ports.detach(server, "a")

    assert ports.held(server) == {"source 0": 300}


def test_an_attachment_fails_if_no_provider_has_the_required_traits(room: Room, ports: Ports, server: str) -> None:
    failed = ports.attach(server, required=("HW_CPU_X86_AVX2",))
    assert (failed.state, ports.held(server)) == ("failed", {})
    unknown = ports.attach(server, required=("CUSTOM_NO_SUCH_TRAIT",))
    assert unknown.state == "failed"
    assert "CUSTOM_NO_SUCH_TRAIT" in str(unknown.reason)
    assert room.show(server).attached == {}


def test_under_the_policy_isolate_an_attached_group_uses_another_provider(room: Room, ports: Ports) -> None:
    uuid = ids.fresh()
    spec = room.spec("source")
    groups = {**spec.groups, "built": bandwidth(100)}
    isolated = structs.replace(spec, groups=groups, group_policy="isolate")
    room.order(BuildInstances(request_id=ids.fresh(), request_spec=isolated, instance_uuids=(uuid,)))
    room.becomes(uuid, "active")

    assert ports.attach(uuid, amount=100).state == "done"

    cards = ports.held(uuid)
    assert len(cards) == 2
    source, target = (uuid for uuid, name in ports.nics().items() if name in cards)
    [card] = room.placement.call(ListResourceProviders(uuid=source))
    all_of_it = MoveInstruction(
        from_resource_provider=source,
        moved_resources={BANDWIDTH: card.inventories[BANDWIDTH].total},
        to_resource_provider=target,
    )
    with pytest.raises(errors.ImpossibleDeal, match="isolated"):
        room.placement.call(PlanReshape(instructions=(all_of_it,)))
    assert ports.attach(uuid, "_port2", amount=100).state == "failed"
    with pytest.raises(errors.InvalidState, match="was asked for when the instance was built"):
        give(room, DetachResource, uuid, suffix="built")
    delete(room, uuid)


def test_an_audit_has_no_findings_about_attached_resources(room: Room, ports: Ports, server: str) -> None:
    ports.attach(server)
    conf = room.cloud.configuration()
    clients = Clients(conf, 60.0)
    try:
        found, unseen, _state = examine(lambda: AuditCollector(conf, clients).collect(), settle=0.1)
    finally:
        clients.close()

    assert (found, unseen) == ([], {})
