"""Processes that make claims on a compute node without pause, and one that checks it all the time."""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

from sqlalchemy import Connection, Row, create_engine, select

from moorage import errors, ids
from moorage.db.database import Database
from placement_store.schema import allocations, consumers, inventories
from support.placement_store.builders import Store
from support.processes.forked_process import CONTEXT

#: The maximum number of claims of each process: the oldest is released when a new one is made.
HELD = 2


@dataclass(frozen=True)
class Guest:
    """A claim that stands, and all its amounts, anywhere in the tree."""

    uuid: str
    claim_id: str
    amounts: dict[str, int]


@dataclass(frozen=True)
class Host:
    """The compute node that all processes use."""

    url: str
    root: str
    children: tuple[str, ...]
    moved_class: str
    moved_class_id: int
    total: int


@dataclass
class Counters:
    """The values that the processes share."""

    ended: Event = field(default_factory=CONTEXT.Event)
    claimed: "Synchronized[int]" = field(default_factory=lambda: CONTEXT.Value("i", 0))
    looked: "Synchronized[int]" = field(default_factory=lambda: CONTEXT.Value("i", 0))
    results: Any = field(default_factory=CONTEXT.Queue)


# --- Claiming -------------------------------------------------------------------------------------------------------


def claim_and_release(host: Host, counters: Counters, number: int) -> None:
    """Claim in turn from the root, and from the class that moves, on the root and on a child; release, until the end.

    Finally report the guests that stand, and every error that is neither a refusal nor contention.
    """
    database = Database(host.url, "main", pool_size=2)
    store, guests, strange = Store(database), deque[Guest](), list[str]()
    for turn in itertools.count(number):
        if counters.ended.is_set():
            break
        try:
            if guest := _claimed(store, host, turn):
                guests.append(guest)
                with counters.claimed.get_lock():
                    counters.claimed.value += 1
            if len(guests) > HELD:
                gone = guests.popleft()
                store.delete(gone.uuid, claim_id=gone.claim_id, for_good=True)
        except errors.MoorageError as fault:
            strange.append(repr(fault) + str(fault))
    database.close()
    counters.results.put(("claims", list(guests), strange))


def _claimed(store: Store, host: Host, turn: int) -> Guest | None:
    amount = 1 + turn // 4 % 2
    wanted = [
        {host.root: {"VCPU": 1, "MEMORY_MB": 128}},
        {host.root: {"VCPU": 1, host.moved_class: amount}},
        {host.root: {"VCPU": 2}},
        {host.root: {"VCPU": 1}, host.children[turn // 4 % len(host.children)]: {host.moved_class: amount}},
    ][turn % 4]
    uuid = ids.fresh()
    try:
        claimed = store.claim(uuid, wanted, root=host.root)
        if turn % 3 == 0:
            store.accept(uuid, claimed.claim_id, ids.derived("attempt", uuid))
    except errors.CapacityExceeded:
        return None
    amounts = {name: amount for part in wanted.values() for name, amount in part.items()}
    return Guest(uuid, claimed.claim_id, amounts)


# --- Checking -------------------------------------------------------------------------------------------------------


def look(host: Host, resting: list[Guest], counters: Counters) -> None:
    """Read the tree again and again, each time in one consistent snapshot, and report every wrong state."""
    engine = create_engine(host.url, isolation_level="REPEATABLE READ")
    wrong: list[str] = []
    while not counters.ended.is_set() and len(wrong) < 10:
        with engine.connect() as connection, connection.begin():
            wrong += _wrong(connection, host, resting)
        with counters.looked.get_lock():
            counters.looked.value += 1
    engine.dispose()
    counters.results.put(("looks", [], wrong))


def _wrong(connection: Connection, host: Host, resting: list[Guest]) -> list[str]:
    there = connection.execute(select(inventories).where(inventories.c.resource_class_id == host.moved_class_id)).all()
    joined = allocations.join(consumers, consumers.c.id == allocations.c.consumer_id)
    query = select(allocations, consumers.c.uuid, consumers.c.claim_id).select_from(joined)
    held = connection.execute(query.where(allocations.c.resource_class_id == host.moved_class_id)).all()
    told = f"{[tuple(row) for row in there]} {[tuple(row) for row in held]}"
    found = []
    if (total := sum(row.total for row in there)) != host.total:
        found.append(f"there are {total} of {host.total}: {told}")
    sums: dict[int, int] = {}
    for row in held:
        sums[row.resource_provider_id] = sums.get(row.resource_provider_id, 0) + row.used
    if sums != {row.resource_provider_id: row.used for row in there if row.used}:
        found.append(f"used is not what is allocated: {told}")
    found += [f"{row.used} are used of {row.total}" for row in there if row.used > row.total]
    return found + [f"a guest has changed: {guest} {told}" for guest in resting if not _stands(guest, host, held)]


def _stands(guest: Guest, host: Host, held: "list[Row[Any]] | Any") -> bool:
    mine = [row for row in held if row.uuid == guest.uuid]
    amount = sum(row.used for row in mine)
    return amount == guest.amounts[host.moved_class] and {row.claim_id for row in mine} == {guest.claim_id}


# --- All of them ----------------------------------------------------------------------------------------------------


@contextmanager
def at_work(host: Host, resting: list[Guest], claimers: int) -> Iterator[Counters]:
    """Run ``claimers`` processes that claim, and one that checks, until the block ends; then results are queued."""
    counters = Counters()
    processes = [CONTEXT.Process(target=claim_and_release, args=(host, counters, n)) for n in range(claimers)]
    processes.append(CONTEXT.Process(target=look, args=(host, resting, counters)))
    for process in processes:
        process.start()
    try:
        yield counters
    finally:
        counters.ended.set()


def results(counters: Counters, processes: int) -> tuple[list[Guest], list[str]]:
    """Return, once all processes have ended, the guests that stand and all errors."""
    guests: list[Guest] = []
    wrong: list[str] = []
    for _ in range(processes):
        _, standing, strange = counters.results.get(timeout=60)
        guests += standing
        wrong += strange
    return guests, wrong
