"""A cloud of three hosts with two NICs each, one room for all tests of attached resources."""

from collections.abc import Iterator

import pytest
from support.operations import port_room
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.port_room import NICS, Ports
from support.operations.room import Room, rooms_of

from moorage import failpoints


@pytest.fixture(scope="module")
def of_the_module() -> Iterator[Room]:
    troubles = Troubles()
    with failpoints.observed(troubles), TroublesomeCloud(plan("combine", hosts=3, **NICS)) as cloud:
        [room] = rooms_of(cloud, troubles)
        yield room


@pytest.fixture
def room(of_the_module: Room) -> Iterator[Room]:
    yield of_the_module
    of_the_module.make_room()


@pytest.fixture
def ports(room: Room) -> Ports:
    return Ports(room)


@pytest.fixture
def server(room: Room) -> Iterator[str]:
    """A server that is active on the source; deleted, it holds nothing, whatever has been attached to it."""
    uuid = room.build()
    yield uuid
    port_room.delete(room, uuid)
    room.clear(uuid)
