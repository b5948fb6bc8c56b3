"""Others write, fill up and delete while something is attached or detached."""

import threading
from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import select
from support.operations.cloud import lose
from support.operations.port_room import BANDWIDTH, PORT, WIDTH, Ports, attach_under, delete, rewrite, struck
from support.operations.room import Room

from conductor.cell.payloads import WriteStep
from conductor.schema import cell_operations
from moorage import context, errors, ids
from moorage.messages import DetachResource, ListOperations, OperationBegun, PutAllocations
from moorage.model.inspection import OperationSummary


def test_what_has_been_moved_within_the_tree_is_taken_from_where_it_is(room: Room, ports: Ports, server: str) -> None:
    ports.attach(server)
    [now] = ports.held(server)
    here, there = ports.nic("source", int(now[-1])), ports.nic("source", 1 - int(now[-1]))

    def reshape(held: dict[str, dict[str, int]]) -> None:
        held[there] = held.pop(here)

    rewrite(room, server, reshape)
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}
    assert room.seen(server).holds == "instance: source"


def test_no_more_is_taken_than_is_left_and_what_others_have_put_there_stays(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    [now] = ports.held(server)
    here = ports.nic("source", int(now[-1]))
    rewrite(room, server, lambda held: held[here].update({BANDWIDTH: WIDTH + 100}))
    ports.detach(server)
    assert ports.held(server) == {now: 100}
    ports.attach(server, "_port2")
    ports.take_away(server)

    assert ports.detach(server, "_port2").state == "done"

    assert ports.held(server) == {}


def test_a_provider_that_fills_up_before_the_write_is_given_up_for_the_next(
    room: Room, ports: Ports, server: str
) -> None:
    request_id = struck(room, "step.attach.write.begin", lambda: ports.take("source", 0, 900))

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server)) == ("done", {"source 1": WIDTH})


def deleted_at(room: Room, point: str, server: str, order: Callable[[str], OperationBegun]) -> OperationSummary:
    """Have a server deleted, and wait for that, at a failpoint of what is ordered; return how the order has ended."""
    is_over = threading.Event()

    def action() -> None:
        delete(room, server)
        is_over.set()

    request_id = struck(room, point, action)
    begun = order(request_id)
    ended = Ports(room).ended(begun)
    assert is_over.wait(60.0)
    assert room.troubles.disarm(request_id) == []
    return ended


@pytest.mark.parametrize("point", ["choose.begin", "choose.done", "write.begin", "write.done"])
def test_a_server_that_is_deleted_meanwhile_holds_nothing_however_late_the_write_comes(
    room: Room, ports: Ports, point: str
) -> None:
    server = room.build()

    ended = deleted_at(room, f"step.attach.{point}", server, lambda request_id: attach_under(room, request_id, server))

    assert (ended.state, ended.reason) == ("failed", "the instance is being deleted")
    assert ports.held(server) == {}
    room.until(lambda: not room.seen(server).pending, "all to have ended")
    assert ports.held(server) == {}


@pytest.mark.parametrize("point", ["read.begin", "write.begin", "write.done"])
def test_a_server_that_is_deleted_while_something_is_detached_holds_nothing(
    room: Room, ports: Ports, point: str
) -> None:
    server = room.build()
    ports.attach(server)

    def detach(request_id: str) -> OperationBegun:
        with context.bound(request_id=request_id):
            return room.order(DetachResource(request_id=ids.fresh(), instance_uuid=server, suffix=PORT))

    ended = deleted_at(room, f"step.detach.{point}", server, detach)

    assert (ended.state, ports.held(server)) == ("failed", {})


# --- Late -------------------------------------------------------------------------------------------------------------


def sent_late(room: Room, uuid: str) -> None:
    """Have the write that was refused last carried out now, as a message that was long on its way."""
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


def refused_at_its_second_sending(room: Room, ports: Ports) -> str:
    """Have the next order's write not sent the first time, and refused the second time; return the order's request."""
    request_id = struck(room, "step.attach.write.begin", lambda: ports.take("source", 0, 900))
    room.troubles.arm(request_id, "step.attach.write.send.*", lose)
    return request_id


def test_a_write_that_was_refused_and_is_carried_out_before_it_is_fenced_is_found(
    room: Room, ports: Ports, server: str
) -> None:
    request_id = refused_at_its_second_sending(room, ports)
    room.troubles.arm(request_id, "step.attach.fence.begin", lambda: sent_late(room, server))

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server)) == ("done", {"source 0": WIDTH})
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}


def test_a_write_that_was_refused_is_not_carried_out_any_more_once_it_is_fenced(
    room: Room, ports: Ports, server: str
) -> None:
    request_id = refused_at_its_second_sending(room, ports)
    refused: list[errors.ConsumerGenerationConflict] = []

    def late() -> None:
        with pytest.raises(errors.ConsumerGenerationConflict) as refusal:
            sent_late(room, server)
        refused.append(refusal.value)

    room.troubles.arm(request_id, "step.attach.fence.done", late)

    ended = ports.ended(attach_under(room, request_id, server))

    assert room.troubles.disarm(request_id) == []
    assert (ended.state, ports.held(server), len(refused)) == ("done", {"source 1": WIDTH}, 1)
