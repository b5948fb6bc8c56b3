"""Test that a delete releases a server's attached resources even where foreign amounts on it are kept."""

from collections.abc import Iterator

import pytest
from support.operations.basis import KEEPING
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.port_room import NICS, Ports, at_failpoint, attach_under
from support.operations.room import LICENCE, Room, rooms_of

from moorage import failpoints, ids
from moorage.messages import DeleteInstance, GetAllocations


@pytest.fixture(scope="module")
def module_room() -> Iterator[Room]:
    """Return a room in a cloud in which a deletion keeps foreign amounts."""
    troubles = Troubles()
    with failpoints.observed(troubles), TroublesomeCloud(plan(*KEEPING, hosts=3, **NICS)) as cloud:
        [room] = rooms_of(cloud, troubles)
        yield room


@pytest.mark.parametrize("point", ["", "choose.done", "write.begin", "write.done"])
def test_a_delete_releases_attached_resources_and_keeps_foreign_amounts(room: Room, ports: Ports, point: str) -> None:
    server = room.build()
    room.attach_licence(server)
    order = DeleteInstance(request_id=ids.fresh(), instance_uuid=server)

    def delete() -> None:
        room.order(order)

    if point:
        request_id = at_failpoint(room, f"step.attach.{point}", delete)
        ports.ended(attach_under(room, request_id, server))
    else:
        ports.attach(server)
        delete()

    room.becomes(server, "deleted")
    room.until(lambda: not room.seen(server).pending, "all to have ended")

    [held] = room.placement.call(GetAllocations(consumer_uuid=server)).allocations.values()
    assert held.resources == {LICENCE: 1}
