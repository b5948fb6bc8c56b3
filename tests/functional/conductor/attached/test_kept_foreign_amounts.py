"""Test that a delete releases a server's attached resources even where foreign amounts on it are kept."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.port_room import NICS, Ports, attach_under, struck
from support.operations.room import LICENCE, Room, rooms_of

from moorage import failpoints, ids
from moorage.messages import DeleteInstance, GetAllocations


@pytest.fixture(scope="module")
def of_the_module() -> Iterator[Room]:
    """A room in whose cloud a deletion leaves what others have put on a server."""
    troubles, usual = Troubles(), plan("combine", hosts=3, **NICS)
    keeping = {**usual.settings["conductor"], "delete_foreign_amounts": False}
    settings = {**usual.settings, "conductor": keeping}
    with failpoints.observed(troubles), TroublesomeCloud(replace(usual, settings=settings)) as cloud:
        [room] = rooms_of(cloud, troubles)
        yield room


@pytest.mark.parametrize("point", ["", "choose.done", "write.begin", "write.done"])
def test_what_is_attached_goes_with_its_server_though_what_others_have_put_there_stays(
    room: Room, ports: Ports, point: str
) -> None:
    server = room.build()
    room.attach_licence(server)
    order = DeleteInstance(request_id=ids.fresh(), instance_uuid=server)

    def delete() -> None:
        room.order(order)

    if point:
        request_id = struck(room, f"step.attach.{point}", delete)
        ports.ended(attach_under(room, request_id, server))
    else:
        ports.attach(server)
        delete()

    room.becomes(server, "deleted")
    room.until(lambda: not room.seen(server).pending, "all to have ended")

    [held] = room.placement.call(GetAllocations(consumer_uuid=server)).allocations.values()
    assert held.resources == {LICENCE: 1}
