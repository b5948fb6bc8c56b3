"""A resource group that is attached to a server that runs: held of one provider of its host."""

import pytest
from support.operations.port_room import BANDWIDTH, PORT, WIDTH, Ports, bandwidth, delete, give
from support.operations.room import Room

from moorage import errors, ids
from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import examine
from moorage.cli.clients import Clients
from moorage.messages import BuildInstances, DetachResource, GetAllocations, ListResourceProviders, PlanReshape
from moorage.model import MoveInstruction


def test_what_is_attached_is_held_of_one_provider_and_gone_when_it_is_detached(
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
    assert ports.attach(server).state == "done", "the name is free again"


def test_a_second_group_goes_to_the_provider_that_has_room_and_a_third_that_fits_nowhere_fails_and_holds_nothing(
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


def test_groups_of_one_provider_are_added_up_and_each_takes_its_own_with_it(ports: Ports, server: str) -> None:
    ports.take("source", 1, 1000)
    ports.attach(server, "a", 600)
    ports.attach(server, "b", 300)
    assert ports.held(server) == {"source 0": 900}

    ports.detach(server, "a")

    assert ports.held(server) == {"source 0": 300}


def test_traits_choose_the_provider_and_what_no_provider_is_fails(room: Room, ports: Ports, server: str) -> None:
    failed = ports.attach(server, required=("HW_CPU_X86_AVX2",))
    assert (failed.state, ports.held(server)) == ("failed", {})
    unknown = ports.attach(server, required=("CUSTOM_NO_SUCH_TRAIT",))
    assert unknown.state == "failed"
    assert "CUSTOM_NO_SUCH_TRAIT" in str(unknown.reason)
    assert room.show(server).attached == {}


def test_where_groups_are_to_be_alone_another_provider_is_taken(room: Room, ports: Ports) -> None:
    uuid = ids.fresh()
    spec = room.spec("source")
    groups = {**spec.groups, "built": bandwidth(100)}
    fields = {name: getattr(spec, name) for name in type(spec).__struct_fields__}
    alone = type(spec)(**fields | {"groups": groups, "group_policy": "isolate"})
    room.order(BuildInstances(request_id=ids.fresh(), request_spec=alone, instance_uuids=(uuid,)))
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


def test_an_audit_finds_nothing_wrong_with_what_is_attached(room: Room, ports: Ports, server: str) -> None:
    ports.attach(server)
    conf = room.cloud.configuration()
    clients = Clients(conf, 60.0)
    try:
        found, unseen, _state = examine(lambda: AuditCollector(conf, clients).collect(), settle=0.1)
    finally:
        clients.close()

    assert (found, unseen) == ([], {})
