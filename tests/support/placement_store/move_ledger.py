"""Hosts, pools, requests and a ledger of foreign allocations, for the properties of moves and deletes."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import os_resource_classes
from hypothesis import strategies as st

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ListResourceProviders
from moorage.model import Allocations, ProviderAmounts
from placement_store.schema import MAIN, allocations, changes, consumers, inventories, requests, tombstones
from support.placement_store.builders import Store
from support.placement_store.move_builders import Moving

#: The consumer that takes all free amounts.
FILLER = ids.derived("consumer", "filler")
#: A provider and a resource class.
Sums = Counter[tuple[str, str]]

HOSTS = ("source", "second", "third")
#: Two of the pools are in trees of hosts.
POOLS = {"pool": None, "other pool": None, "of source": "source", "of second": "second"}
#: Pools that are in one tree.
DIVIDED = {"divided": None, "ssd": "divided", "hdd": "divided"}
ROOM = 7
DISK_GB = os_resource_classes.STANDARDS.index("DISK_GB")
UUIDS = {name: ids.derived("provider", name) for name in (*HOSTS, *POOLS, *DIVIDED)}

amounts = st.integers(1, 4)
of_host = st.fixed_dictionaries({"VCPU": amounts}, optional={"MEMORY_MB": amounts})
disks = st.integers(1, 9)
of_pools = st.dictionaries(st.sampled_from(sorted(POOLS)), disks, max_size=2)
of_divided = st.dictionaries(st.sampled_from(sorted(DIVIDED)), disks, max_size=3)


def asked(host: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, dict[str, int]]]:
    """Return amounts of a host, which comes first, and of pools."""
    return st.builds(
        lambda name, resources, disks: {UUIDS[name]: resources, **{UUIDS[k]: {"DISK_GB": n} for k, n in disks.items()}},
        host,
        of_host,
        of_pools | of_divided,
    )


#: The foreign amounts that are added to the instance or the migration, each after a number of destinations.
extras = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from([(name, "VCPU") for name in HOSTS] + [(name, "DISK_GB") for name in (*POOLS, *DIVIDED)]),
        st.integers(1, 3),
    ),
    max_size=5,
)
destinations = st.lists(asked(st.sampled_from(HOSTS)), min_size=1, max_size=3)


def certain(wanted: list[Any], news: list[Any]) -> list[Any]:
    """Return the foreign amounts that a move to these destinations cannot take for amounts of the source.

    A reshape may have moved amounts of the source within the tree of a pool that the destination uses. So amounts that
    the migration has elsewhere in this tree count as the source's. It may get foreign ones there from an earlier
    destination.
    """
    return [one for one in wanted if one[2][0] not in DIVIDED or (one[1] and len(news) == 1)]


def build(database: Database) -> Store:
    """Return a store with the hosts and pools."""
    MAIN.upgrade(database)
    store = Store(database)
    store.names.sync()
    for name in HOSTS:
        store.provider(name, UUIDS[name], VCPU=ROOM, MEMORY_MB=ROOM)
    for name, parent in (POOLS | DIVIDED).items():
        store.provider(name, UUIDS[name], parent=UUIDS[parent] if parent else None, DISK_GB=3 * ROOM)
    return store


def emptied(store: Store, room: int = ROOM) -> Store:
    """Delete all consumers, and give each host this much room."""
    with store.database.engine.connect() as connection, connection.begin():
        for table in (allocations, consumers, tombstones, requests, changes):
            connection.execute(table.delete())
        connection.execute(inventories.update().values(used=0, total=3 * room))
        connection.execute(inventories.update().where(inventories.c.resource_class_id != DISK_GB).values(total=room))
    return store


def sums(held: Mapping[str, Mapping[str, int]] | Allocations) -> Sums:
    resources = {uuid: part.resources if isinstance(part, ProviderAmounts) else part for uuid, part in held.items()}
    return Counter({(uuid, name): n for uuid, part in resources.items() for name, n in part.items()})


def used(store: Store) -> Sums:
    listed = store.dispatcher.call(ListResourceProviders())
    return Counter({(one.uuid, name): n for one in listed for name, n in one.used.items()})


def as_amounts(found: Sums) -> dict[str, dict[str, int]]:
    held: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in (+found).items():
        held.setdefault(uuid, {})[name] = amount
    return held


def add(store: Store, uuid: str, more: Sums) -> None:
    """Add to a consumer's allocations, as a client without knowledge of moves would."""
    found = store.consumer(uuid)
    store.put(uuid, as_amounts(sums(found.allocations) + more), found.generation)


def fill_up(store: Store) -> None:
    """Take all free amounts."""
    listed = store.dispatcher.call(ListResourceProviders())
    free = {(one.uuid, name): int(i.capacity) - one.used[name] for one in listed for name, i in one.inventories.items()}
    store.put(FILLER, as_amounts(Counter(free)))


def assert_sound(store: Store) -> None:
    report = store.audit()
    assert not report.drifted, "what is used is not the sum of the allocations"
    assert not report.overcommitted


class Ledger:
    """The foreign allocations of the two consumers, and those that an answer has reported as lost."""

    def __init__(self, store: Store, moving: Moving, wanted: list[Any]) -> None:
        self.store, self.moving, self.wanted = store, moving, wanted
        self.put: Sums = Counter()
        self.lost: Sums = Counter()

    def others_write(self, step: int, *, begun: bool) -> None:
        for when, to_instance, (name, resource_class), amount in self.wanted:
            if when != step:
                continue
            uuid = self.moving.uuid if to_instance or not begun else self.moving.migration
            more: Sums = Counter({(UUIDS[name], resource_class): amount})
            try:
                add(self.store, uuid, more)
            except errors.CapacityExceeded:
                continue
            self.put += more
