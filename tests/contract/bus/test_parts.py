"""Test that a list that is read in parts is complete, for any size of its entries and for servers of both releases."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import ClassVar
from uuid import uuid4

import pytest
from msgspec import structs

from moorage import errors, ids
from moorage.bus.bus import Bus, Client, serves
from moorage.bus.message_size import MAX_MESSAGE
from moorage.cli import lists
from moorage.config import options
from moorage.messages import MAX_INSTANCES, ListHosts
from moorage.messages.wire import Message
from moorage.model import HostState, Name, Uuid

MANY = 20_000
CELL = ids.derived("parts", "cell")


def host(number: int, padding: str = "") -> HostState:
    return HostState(
        service_host=f"host{number:05}",
        nodename=f"host{number:05}",
        compute_node_uuid=ids.derived("parts", "node", number),
        cell_uuid=CELL,
        agent="agent",
        availability_zone="nova",
        up=True,
        heartbeat_age=1.0,
        attributes={"padding": padding},
    )


class Registry:
    """A registry that keeps its hosts in memory."""

    def __init__(self, hosts: Sequence[HostState]) -> None:
        self.hosts = sorted(hosts, key=lambda host: host.compute_node_uuid)
        self.limits: list[int | None] = []

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        self.limits.append(message.limit)
        return lists.part_of(self.hosts, lambda host: host.compute_node_uuid, message.limit, message.after)


class Changing(Registry):
    """A registry that loses the last host of the first part after that part, and gets a new last host."""

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        part = super().list_hosts(message)
        if message.after is None:
            self.hosts.remove(part[-1])
            self.hosts.append(NEWCOMER)
        return part


NEWCOMER = structs.replace(host(99_999), compute_node_uuid="ffffffff-ffff-ffff-ffff-ffffffffffff")


class FormerListHosts(Message[list[HostState]], frozen=True, kw_only=True):
    """List hosts as the former release does, which has no parts."""

    topic = "scheduler"
    method = "list_hosts"
    since: ClassVar = {"service_host": "1.3"}
    cell_uuid: Uuid | None = None
    service_host: Name | None = None


class FormerRegistry:
    """A registry of the former release, which lists by name."""

    def __init__(self, hosts: Sequence[HostState]) -> None:
        self.hosts = list(hosts)

    @serves(FormerListHosts)
    def list_hosts(self, _message: FormerListHosts) -> list[HostState]:
        return self.hosts


class Peers:
    """A registry and its client, each with its own connections."""

    def __init__(self, url: str, closing: ExitStack) -> None:
        self._conf = options.new({"DEFAULT": {"transport_url": url}, "rpc": {"call_timeout": 60}})
        self._closing = closing
        self._topic = f"registry-{uuid4()}"

    def _bus(self) -> Bus:
        bus = Bus(self._conf)
        self._closing.callback(bus.close)
        return bus

    def serve(self, registry: object) -> Client:
        self._bus().server(self._topic, "one", [registry]).start()
        return self._bus().client(self._topic)


@pytest.fixture
def peers(shared_bus_url: str) -> Iterator[Peers]:
    with ExitStack() as closing:
        yield Peers(shared_bus_url, closing)


def test_a_list_that_is_larger_than_a_message_is_read_in_parts(peers: Peers) -> None:
    hosts = [host(number, "x" * 400) for number in range(MANY)]
    registry = Registry(hosts)
    client = peers.serve(registry)
    with pytest.raises(errors.ReplyTooLarge):
        client.call(ListHosts())

    found = lists.hosts(client, ListHosts())

    assert found == hosts
    assert registry.limits == [None, *[MAX_INSTANCES] * (MANY // MAX_INSTANCES + 1)], "no part was too large"


def test_a_part_that_is_too_large_for_a_message_is_requested_in_smaller_parts(peers: Peers) -> None:
    hosts = [host(number, "x" * (MAX_MESSAGE // 10)) for number in range(12)]
    registry = Registry(hosts)

    assert lists.hosts(peers.serve(registry), ListHosts(), 16) == hosts

    assert registry.limits == [16, 4, 4, 4, 4]


def test_an_entry_that_is_too_large_for_a_message_is_a_typed_error(peers: Peers) -> None:
    client = peers.serve(Registry([host(1), host(2, "x" * MAX_MESSAGE)]))
    with pytest.raises(errors.ReplyTooLarge):
        lists.hosts(client, ListHosts(), 2)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8])
def test_a_registry_of_the_former_release_lists_each_host_once(peers: Peers, count: int) -> None:
    hosts = [host(number) for number in range(count)]
    assert lists.hosts(peers.serve(FormerRegistry(hosts)), ListHosts(), 4) == hosts


def test_hosts_that_exist_throughout_are_listed_once_while_others_are_added_and_removed(peers: Peers) -> None:
    hosts = [host(number) for number in range(9)]
    found = lists.hosts(peers.serve(Changing(hosts)), ListHosts(), 4)
    assert found == [*hosts, NEWCOMER]
