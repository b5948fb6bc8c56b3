"""Properties of moves, on SQLite: whatever is moved where, and whoever writes meanwhile, each sum comes out exactly."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import os_resource_classes
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from move_builders import Moving
from placement_builders import Store

from moorage import errors, ids
from moorage.database import Database
from moorage.messages import ListResourceProviders
from moorage.model import Allocations
from placement_store.schema import MAIN, allocations, changes, consumers, inventories, requests, tombstones

#: Who takes whatever is free.
FILLER = ids.derived("consumer", "filler")
#: A provider and a resource class.
Sums = Counter[tuple[str, str]]

HOSTS = ("source", "second", "third")
#: Two of a pool's kind stand in trees of hosts.
POOLS = {"pool": None, "other pool": None, "of source": "source", "of second": "second"}
ROOM = 7
DISK_GB = os_resource_classes.STANDARDS.index("DISK_GB")
UUIDS = {name: ids.derived("provider", name) for name in (*HOSTS, *POOLS)}

amounts = st.integers(1, 4)
of_host = st.fixed_dictionaries({"VCPU": amounts}, optional={"MEMORY_MB": amounts})
of_pools = st.dictionaries(st.sampled_from(sorted(POOLS)), st.integers(1, 9), max_size=2)


def asked(host: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, dict[str, int]]]:
    """Amounts of a host, which comes first, and of pools."""
    return st.builds(
        lambda name, resources, disks: {UUIDS[name]: resources, **{UUIDS[k]: {"DISK_GB": n} for k, n in disks.items()}},
        host,
        of_host,
        of_pools,
    )


#: What somebody else adds to what one of the two holds, after so many destinations.
extras = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from([(name, "VCPU") for name in HOSTS] + [(name, "DISK_GB") for name in POOLS]),
        st.integers(1, 3),
    ),
    max_size=5,
)
destinations = st.lists(asked(st.sampled_from(HOSTS)), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with the hosts and pools."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('moves')}/main.sqlite", "main")
    MAIN.upgrade(database)
    store = Store(database)
    store.names.sync()
    for name in HOSTS:
        store.provider(name, UUIDS[name], VCPU=ROOM, MEMORY_MB=ROOM)
    for name, parent in POOLS.items():
        store.provider(name, UUIDS[name], parent=UUIDS[parent] if parent else None, DISK_GB=3 * ROOM)
    yield store
    database.close()


def emptied(store: Store, room: int = ROOM) -> Store:
    """Forget all consumers; give each host room for so much."""
    with store.database.engine.connect() as connection, connection.begin():
        for table in (allocations, consumers, tombstones, requests, changes):
            connection.execute(table.delete())
        connection.execute(inventories.update().values(used=0, total=3 * room))
        connection.execute(inventories.update().where(inventories.c.resource_class_id != DISK_GB).values(total=room))
    return store


def sums(held: Mapping[str, Mapping[str, int]] | Allocations) -> Sums:
    resources = {uuid: getattr(part, "resources", part) for uuid, part in held.items()}
    return Counter({(uuid, name): n for uuid, part in resources.items() for name, n in part.items()})


def used(store: Store) -> Sums:
    listed = store.endpoint.list_resource_providers(ListResourceProviders())
    return Counter({(one.uuid, name): n for one in listed for name, n in one.used.items()})


def as_amounts(found: Sums) -> dict[str, dict[str, int]]:
    held: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in (+found).items():
        held.setdefault(uuid, {})[name] = amount
    return held


def add(store: Store, uuid: str, more: Sums) -> None:
    """Add to what a consumer holds, as somebody would who knows nothing of moves."""
    found = store.consumer(uuid)
    store.put(uuid, as_amounts(sums(found.allocations) + more), found.generation)


def fill_up(store: Store) -> None:
    """Take whatever is free."""
    listed = store.endpoint.list_resource_providers(ListResourceProviders())
    free = {(one.uuid, name): int(i.capacity) - one.used[name] for one in listed for name, i in one.inventories.items()}
    store.put(FILLER, as_amounts(Counter(free)))


def assert_sound(store: Store) -> None:
    report = store.audit()
    assert not report.drifted, "what is used is not the sum of the allocations"
    assert not report.overcommitted


class Ledger:
    """What others have put on the two consumers, and what of that was said to be lost."""

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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    held=asked(st.just("source")),
    news=destinations,
    wanted=extras,
    outcome=st.sampled_from(["confirm", "revert"]),
    residue=st.booleans(),
)
def test_after_either_end_the_instance_holds_what_it_should_and_what_others_have_put_there_is_there_or_was_named(
    built: Store,
    held: dict[str, dict[str, int]],
    news: list[dict[str, dict[str, int]]],
    wanted: list[Any],
    outcome: str,
    residue: bool,
) -> None:
    store = emptied(built)
    moving = Moving(store, held).build()
    ledger = Ledger(store, moving, wanted)
    begun = False
    for step, new in enumerate(news):
        ledger.others_write(step, begun=begun)
        moving.generation = store.consumer(moving.uuid).generation
        before, rows = used(store), store.rows()
        try:
            if begun:
                ledger.lost += sums(moving.swap(new).extras)
            else:
                moving.begin(new, kind="resize", drop_extras=True)
        except errors.CapacityExceeded:
            assert store.rows() == rows, "a refused move has changed something"
            event("refused")
            continue
        begun = True
        assert not (used(store) - before) - sums(new), "a move has needed more than it says"
        assert_sound(store)
    if not begun:
        return
    ledger.others_write(len(news), begun=begun)
    moving.accept()
    fill_up(store)
    before = used(store)

    ended = store.endpoint.end_move(moving.ending(outcome, guest_gone=not residue, leave_residue=residue))

    event(f"{outcome}, residue {ended.residue_uuid is not None}")
    assert not used(store) - before, "the end of a move has needed room"
    assert_sound(store)
    ledger.lost += sums(ended.extras)
    kept = sums(moving.claimed if outcome == "confirm" else held)
    assert sums(moving.amounts) == kept + ledger.put - ledger.lost
    assert not ledger.lost - ledger.put, "more was said to be lost than others had put there"
    for uuid in (moving.uuid, moving.attempt, moving.next_attempt):
        store.delete(uuid, for_good=True)
    assert [one.uuid for one in store.audit().holders] == [FILLER], "something has leaked"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(held=asked(st.just("source")), new=asked(st.sampled_from(HOSTS)), wanted=extras)
def test_a_move_is_refused_for_what_others_have_put_on_providers_that_it_leaves_and_for_nothing_else_of_theirs(
    built: Store,
    held: dict[str, dict[str, int]],
    new: dict[str, dict[str, int]],
    wanted: list[Any],
) -> None:
    store = emptied(built, room=100)
    moving = Moving(store, held).build()
    ledger = Ledger(store, moving, [(0, *rest) for _, *rest in wanted])
    ledger.others_write(0, begun=False)
    moving.generation = store.consumer(moving.uuid).generation
    tree = set() if next(iter(new)) == UUIDS["source"] else {UUIDS["source"], UUIDS["of source"]}
    left = (tree | (held.keys() - {UUIDS["source"], UUIDS["of source"]})) - new.keys()
    expected = {pair: amount for pair, amount in ledger.put.items() if pair[0] in left}
    try:
        moving.begin(new, kind="resize")
    except errors.CannotCarryOver as refused:
        named = {(one["provider_uuid"], one["resource_class"]): one["amount"] for one in refused.amounts}
        assert named == expected
        assert moving.migrations == {}
    else:
        assert not expected
