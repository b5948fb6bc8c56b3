"""Long lists, fetched in parts that each fit into one message; and instances by the names that operators type."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from msgspec import structs

from moorage import errors, ids
from moorage.messages import (
    MAX_INSTANCES,
    ListClaims,
    ListHostAggregates,
    ListHosts,
    ListInstances,
    ListMigrations,
    ListOperations,
    ListOperationsInCell,
    ListProviderAllocations,
    ListResourceProviders,
    ListServerGroups,
    ListStrangers,
    ListStrangersInCell,
    ServerGroupState,
)
from moorage.messages.wire import Message, R
from moorage.model import ConsumerHold, HostAggregate, HostState, Instance, Migration, ResourceProvider, Uuid
from moorage.model.inspection import ClaimState, OperationSummary, UnknownGuest

E = TypeVar("E")
A = TypeVar("A", ClaimState, OperationSummary)
M = TypeVar("M", bound=Message[Any])

#: Entries of one answer for entries of varying size. Arbitrary: an aggregate may have all hosts, a group few members.
_AGGREGATES, _GROUPS = 20, 100
#: The most uuids that a refusal lists. Arbitrary: more would not fit on a screen.
_MOST = 10


class MessageClient(Protocol):
    """A client of the bus, or the placement role in this process."""

    def call(self, message: Message[R]) -> R:
        """Return the answer to ``message``.

        :raises MoorageError: the server raised this error.
        """


def instances(
    client: MessageClient,
    message: ListInstances,
    at_once: int = MAX_INSTANCES,
    *,
    most: int | None = None,
    wanted: Callable[[Instance], bool] = lambda _: True,
) -> list[Instance]:
    """Return the instances of a list that are ``wanted``, all or the first ones; see :func:`each_instance`."""
    return list(islice(filter(wanted, each_instance(client, message, at_once)), most))


def each_instance(client: MessageClient, message: ListInstances, at_once: int = MAX_INSTANCES) -> Iterator[Instance]:
    """Yield the instances of a list, whose parts are fetched as they are needed.

    The parts are read at different times. An instance that exists during the whole time is yielded exactly once.

    :param at_once: the most instances of one answer.
    :raises MoorageError: a part cannot be fetched.
    """
    found = _each(client.call, message, at_once, lambda one: one.number, lambda one: one.uuid)
    return (one for one in found if message.deleted or one.state != "deleted")


def migrations(
    client: MessageClient, message: ListMigrations, at_once: int = MAX_INSTANCES, *, most: int | None = None
) -> list[Migration]:
    """Return all migrations of a list, or its first ones; see :func:`instances`."""
    over = ("confirmed", "reverted", "failed", "ended")
    found = _each(client.call, message, at_once, lambda one: one.number, lambda one: one.uuid)
    return list(islice((one for one in found if message.ended or one.state not in over), most))


def operations(
    client: MessageClient,
    message: ListOperations | ListOperationsInCell,
    at_once: int = MAX_INSTANCES,
    *,
    most: int | None = None,
) -> list[OperationSummary]:
    """Return all operations of a list, the oldest first, or the first ones; see :func:`claims`."""
    return _oldest(_each(client.call, message, at_once, operation_key), most)


def unknown_guests(
    client: MessageClient, message: ListStrangers | ListStrangersInCell, at_once: int = MAX_INSTANCES
) -> list[UnknownGuest]:
    """Return all guests without a record, by host; see :func:`instances`."""
    return list(_each(client.call, message, at_once, unknown_guest_key))


def hosts(client: MessageClient, message: ListHosts, at_once: int = MAX_INSTANCES) -> list[HostState]:
    """Return all hosts of a list, by name; see :func:`instances`."""
    found = _each(client.call, message, at_once, lambda host: host.compute_node_uuid)
    return sorted(found, key=lambda host: (host.service_host, host.nodename, host.cell_uuid))


def host_aggregates(
    client: MessageClient, message: ListHostAggregates, at_once: int = _AGGREGATES
) -> list[HostAggregate]:
    """Return all host aggregates of a list, by name; see :func:`instances`."""
    return sorted(_each(client.call, message, at_once, lambda one: one.uuid), key=lambda one: one.name)


def providers(
    client: MessageClient, message: ListResourceProviders, at_once: int = MAX_INSTANCES
) -> list[ResourceProvider]:
    """Return all resource providers of a list, by name; see :func:`instances`."""
    return sorted(_each(client.call, message, at_once, lambda one: one.uuid), key=lambda one: one.name)


def server_groups(client: MessageClient, message: ListServerGroups, at_once: int = _GROUPS) -> list[ServerGroupState]:
    """Return all server groups of a list, by name and uuid; see :func:`instances`."""
    found = _each(client.call, message, at_once, lambda one: one.group.uuid)
    return sorted(found, key=lambda one: (one.name or "", one.group.uuid))


def claims(
    client: MessageClient, message: ListClaims, at_once: int = 5_000, *, most: int | None = None
) -> list[ClaimState]:
    """Return all claims of a list, the oldest first, or the first ones; then the others are not kept in memory."""
    found = _each(client.call, message, at_once, lambda one: one.consumer_uuid)
    return _oldest(found, most)


def claims_of(client: MessageClient, consumer_uuids: Iterable[str]) -> list[ClaimState]:
    """Return the claims and the residues of consumers, the oldest first, in parts by the consumers."""
    uuids = sorted(consumer_uuids)
    parts = (tuple(uuids[start : start + MAX_INSTANCES]) for start in range(0, len(uuids), MAX_INSTANCES))
    found = (client.call(ListClaims(consumer_uuids=part, residues=True)) for part in parts)
    return _oldest(chain.from_iterable(found), None)


def provider_allocations(
    client: MessageClient, message: ListProviderAllocations, at_once: int = MAX_INSTANCES
) -> dict[Uuid, ConsumerHold]:
    """Return the allocations of a provider, by consumer; see :func:`instances`."""

    def fetch(part: ListProviderAllocations) -> list[tuple[Uuid, ConsumerHold]]:
        return list(client.call(part).allocations.items())

    return dict(_each(fetch, message, at_once, lambda item: item[0]))


# --- Agreements of client and server ----------------------------------------------------------------------------------


def operation_key(state: OperationSummary) -> str:
    """Return the key by which operations are listed in parts."""
    return state.uuid


def unknown_guest_key(unknown: UnknownGuest) -> tuple[str, str, str]:
    """Return the key by which unknown guests are listed in parts: two cells may have the same attempt."""
    return unknown.guest.host, unknown.guest.attempt_id, unknown.cell_uuid


def part_of(found: Iterable[E], key: Callable[[E], Any], limit: int | None, after: Any) -> list[E]:
    """Return a part of a list that is merged from several lists, in the order of ``key``.

    Each list is complete, or has at least ``limit`` entries after ``after``.
    """
    return sorted((each for each in found if after is None or key(each) > after), key=key)[:limit]


def _oldest(found: Iterable[A], most: int | None) -> list[A]:
    return sorted(found, key=_youth) if most is None else heapq.nsmallest(most, found, key=_youth)


def _youth(one: ClaimState | OperationSummary) -> float:
    return -one.age


def _each(
    fetch: Callable[[M], Sequence[E]],
    message: M,
    at_once: int,
    key: Callable[[E], Any],
    name: Callable[[E], Any] | None = None,
) -> Iterator[E]:
    """Fetch the parts of a list as they are needed, and yield each entry once.

    :param key: the key by which the parts are ordered.
    :param name: the identity of an entry, if it is not the key.
    """
    name = name or key
    known: set[Any] = set()
    while True:
        try:
            part = fetch(structs.replace(message, limit=at_once))
        except errors.ReplyTooLarge:
            # The entries may be large: fewer entries may fit into a message.
            if at_once == 1:
                raise
            at_once = max(1, at_once // 4)
            continue
        before = len(known)
        for each in part:
            if name(each) not in known:
                known.add(name(each))
                yield each
        # A server of a former release always answers with the whole list, which may happen to have this length.
        if len(part) != at_once or len(known) == before:
            return
        message = structs.replace(message, after=max(key(each) for each in part))


def instance_uuid(conductor: MessageClient, given: str, *, or_deleted: bool = False) -> str:
    """Return the uuid of the existing instance with this name; a uuid is returned unchanged, without a call.

    :param or_deleted: if none of this name exists, return the newest deleted one.
    :raises InstanceNotFound: no instance has this name.
    :raises InvalidRequest: several instances have this name.
    """
    if uuid := ids.canonical(given):
        return uuid
    found = [instance.uuid for instance in instances(conductor, ListInstances(name=given))]
    if not found and or_deleted:
        found = [instance.uuid for instance in instances(conductor, ListInstances(name=given, deleted=True))][-1:]
    if not found:
        raise errors.InstanceNotFound(kind="instance", name=given)
    if len(found) > 1:
        more = ", …" if len(found) > _MOST else ""
        reason = f"{len(found)} instances have this name: {', '.join(found[:_MOST])}{more}"
        raise errors.InvalidRequest(path=given, reason=reason)
    return found[0]
