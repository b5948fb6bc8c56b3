"""A cloud of three hosts with two NICs each: one room for all tests of a module."""

from collections.abc import Iterator

import pytest
from support.operations import port_room
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.port_room import NICS, Ports
from support.operations.room import Room, rooms_of

from moorage import failpoints


@pytest.fixture(scope="module")
def module_room() -> Iterator[Room]:
    troubles = Troubles()
    with failpoints.observed(troubles), TroublesomeCloud(plan("combine", hosts=3, **NICS)) as cloud:
        [room] = rooms_of(cloud, troubles)
        yield room


@pytest.fixture
def room(module_room: Room) -> Iterator[Room]:
    yield module_room
    module_room.make_room()


@pytest.fixture
def ports(room: Room) -> Ports:
    return Ports(room)


@pytest.fixture
def server(room: Room) -> Iterator[str]:
    """Return an active server on the source; delete it at the end, and verify that it holds nothing then."""
    uuid = room.build()
    yield uuid
    port_room.delete(room, uuid)
    room.clear(uuid)
