"""Test attaching and detaching while other clients write allocations or delete the server."""

import threading
from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import select
from support.operations.cloud import lose
from support.operations.port_room import (
    BANDWIDTH,
    PORT,
    WIDTH,
    Ports,
    at_failpoint,
    attach_under,
    bandwidth,
    delete,
    rewrite,
)
from support.operations.room import Room

from conductor.cell.payloads import WriteStep
from conductor.schema import cell_operations
from moorage import context, errors, ids
from moorage.messages import AttachResource, DetachResource, ListOperations, OperationBegun, PutAllocations
from moorage.model.inspection import OperationSummary
from placement_store.schema import requests


def test_a_detach_releases_the_amounts_from_the_provider_that_holds_them_now(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    [name] = ports.held(server)
    here, there = ports.nic("source", int(name[-1])), ports.nic("source", 1 - int(name[-1]))

    def reshape(held: dict[str, dict[str, int]]) -> None:
        held[there] = held.pop(here)

    rewrite(room, server, reshape)
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}
    assert room.seen(server).holds == "instance: source"


def test_a_detach_keeps_foreign_amounts_and_succeeds_if_its_own_are_already_gone(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    [name] = ports.held(server)
    here = ports.nic("source", int(name[-1]))
    rewrite(room, server, lambda held: held[here].update({BANDWIDTH: WIDTH + 100}))
    ports.detach(server)
    assert ports.held(server) == {name: 100}
    ports.attach(server, "_port2")
    ports.take_away(server)

    assert ports.detach(server, "_port2").state == "done"

    assert ports.held(server) == {}


def test_the_next_provider_is_used_if_the_chosen_one_fills_up_before_the_write(
    room: Room, ports: Ports, server: str
) -> None:
    request_id = at_failpoint(room, "step.attach.write.begin", lambda: ports.take("source", 0, 900))

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server)) == ("done", {"source 1": WIDTH})


def deleted_at(room: Room, point: str, server: str, order: Callable[[str], OperationBegun]) -> OperationSummary:
    """Delete a server at a failpoint of an order; return the operation of the order when it has ended."""
    is_over = threading.Event()

    def action() -> None:
        delete(room, server)
        is_over.set()

    request_id = at_failpoint(room, point, action)
    begun = order(request_id)
    ended = Ports(room).ended(begun)
    assert is_over.wait(60.0)
    assert room.troubles.disarm(request_id) == []
    return ended


@pytest.mark.parametrize("point", ["choose.begin", "choose.done", "write.begin", "write.done"])
def test_a_server_that_is_deleted_during_an_attachment_holds_nothing_however_late_the_write_arrives(
    room: Room, ports: Ports, point: str
) -> None:
    server = room.build()

    ended = deleted_at(room, f"step.attach.{point}", server, lambda request_id: attach_under(room, request_id, server))

    assert (ended.state, ended.reason) == ("failed", "the instance is being deleted")
    assert ports.held(server) == {}
    room.until(lambda: not room.seen(server).pending, "all to have ended")
    assert ports.held(server) == {}


@pytest.mark.parametrize("point", ["read.begin", "write.begin", "write.done"])
def test_a_server_that_is_deleted_during_a_detachment_holds_nothing(room: Room, ports: Ports, point: str) -> None:
    server = room.build()
    ports.attach(server)

    def detach(request_id: str) -> OperationBegun:
        with context.bound(request_id=request_id):
            return room.order(DetachResource(request_id=ids.fresh(), instance_uuid=server, suffix=PORT))

    ended = deleted_at(room, f"step.detach.{point}", server, detach)

    assert (ended.state, ports.held(server)) == ("failed", {})


# --- Late writes ------------------------------------------------------------------------------------------------------


def send_refused_write_again(room: Room, uuid: str) -> None:
    """Send the write that was refused last again, as a copy that was delayed."""
    [operation] = room.ask(ListOperations(instance_uuid=uuid))
    query = select(cell_operations.c.payload).where(cell_operations.c.uuid == operation.uuid)
    payload = room.cloud.database.read(lambda connection: connection.execute(query).scalar_one())
    writing = msgspec.json.decode(payload, type=WriteStep)
    room.make_room()
    message = PutAllocations(
        request_id=ids.derived(operation.uuid, "write", writing.choosing.writes),
        consumer_uuid=uuid,
        wanted=msgspec.structs.replace(writing.before, allocations=writing.after),
    )
    room.placement.call(message)


def lose_first_write(room: Room, ports: Ports) -> str:
    """Lose the first write of the next order, and let its repetition be refused; return the request id of the order."""
    request_id = at_failpoint(room, "step.attach.write.begin", lambda: ports.take("source", 0, 900))
    room.troubles.arm(request_id, "step.attach.write.send.*", lose)
    return request_id


def test_a_refused_write_that_is_carried_out_before_its_fence_counts_as_done(
    room: Room, ports: Ports, server: str
) -> None:
    request_id = lose_first_write(room, ports)
    room.troubles.arm(request_id, "step.attach.fence.begin", lambda: send_refused_write_again(room, server))

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server)) == ("done", {"source 0": WIDTH})
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}


def test_a_refused_write_cannot_be_carried_out_after_its_fence(room: Room, ports: Ports, server: str) -> None:
    request_id = lose_first_write(room, ports)
    refused: list[errors.ConsumerGenerationConflict] = []

    def late() -> None:
        with pytest.raises(errors.ConsumerGenerationConflict) as refusal:
            send_refused_write_again(room, server)
        refused.append(refusal.value)

    room.troubles.arm(request_id, "step.attach.fence.done", late)

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server), len(refused)) == ("done", {"source 1": WIDTH}, 1)


# --- Writes whose answer is lost and expires before the repetition ----------------------------------------------------


def lose_an_answer(room: Room, kind: str) -> str:
    """Lose the answer to the first write of the next order, and forget it; return the request id of the order."""

    def expire() -> None:
        room.cloud.database.write(lambda connection: connection.execute(requests.delete()))
        lose()

    return at_failpoint(room, f"step.{kind}.write.answered.*", expire)


def test_an_attachment_whose_answer_has_expired_is_not_written_twice(room: Room, ports: Ports, server: str) -> None:
    # Both fit on one NIC.
    request_id = lose_an_answer(room, "attach")
    message = AttachResource(request_id=ids.fresh(), instance_uuid=server, suffix=PORT, group=bandwidth(100))
    with context.bound(request_id=request_id):
        begun = room.order(message)

    ended = ports.ended(begun)

    assert room.troubles.disarm(request_id) == []
    assert ended.state == "done"
    assert list(ports.held(server).values()) == [100]
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}


def test_a_detachment_whose_answer_has_expired_keeps_foreign_amounts(room: Room, ports: Ports, server: str) -> None:
    ports.attach(server)
    [name] = ports.held(server)
    rewrite(room, server, lambda held: held[ports.nic("source", int(name[-1]))].update({BANDWIDTH: WIDTH + 100}))
    request_id = lose_an_answer(room, "detach")
    with context.bound(request_id=request_id):
        begun = room.order(DetachResource(request_id=ids.fresh(), instance_uuid=server, suffix=PORT))

    ended = ports.ended(begun)

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server)) == ("done", {name: 100})
