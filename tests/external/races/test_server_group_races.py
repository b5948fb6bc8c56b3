"""Concurrent placements of members of server groups, on MariaDB: no rule is broken, and no free host stays unused."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.databases.migrated import OnMariaDB
from support.scheduler.builders import select
from support.scheduler.moving_builders import accept, group, instance_of, migration_of, move
from support.scheduler.rig import OneScheduler, Rig

from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import Selection
from placement_store.schema import MAIN

MEMBERS = 40
THREADS = 8
#: The number of requests that a conductor sends before it gives up because of contention; see `[conductor]`.
REQUESTS = 5


@pytest.fixture
def rig(migrated_mariadb: OnMariaDB) -> Iterator[Rig]:
    started = Rig(migrated_mariadb.url(MAIN), is_migrated=True)
    yield started
    started.close()


def placed(scheduler: OneScheduler, message: Callable[[int], SelectDestinations]) -> Selection | None:
    """Return the host of an instance, or null if there is none; repeat after contention, as a conductor does."""
    for number in range(REQUESTS):
        try:
            return scheduler.select(message(number))[0][0]
        except errors.ClaimContention:
            continue
        except errors.NoValidHost:
            return None
    return None


def placed_at_once(
    schedulers: Sequence[OneScheduler], messages: Sequence[Callable[[int], SelectDestinations]]
) -> list[Selection | None]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(
            pool.map(
                lambda item: placed(schedulers[item[0] % len(schedulers)], item[1]),
                enumerate(messages),
            )
        )


def test_forty_anti_affinity_members_fill_forty_hosts_exactly(rig: Rig) -> None:
    rig.add_hosts(range(MEMBERS))
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    apart = group("anti-affinity")

    def message(member: int) -> Callable[[int], SelectDestinations]:
        return lambda number: select(f"i{member}-{number}", server_group=apart, num_alternates=2)

    found = placed_at_once(schedulers, [message(member) for member in range(MEMBERS)])
    assert all(found)
    assert Counter(one.service_host for one in found if one) == Counter(f"host{number}" for number in range(MEMBERS))
    with pytest.raises(errors.NoValidHost):
        schedulers[0].select(select("one more", server_group=apart))
    assert len(rig.audit().holders) == MEMBERS


def test_if_there_are_more_members_than_places_all_places_are_filled_and_the_other_members_get_no_host(
    rig: Rig,
) -> None:
    rig.add_hosts(range(10))
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    in_pairs = group("anti-affinity", 2)

    def message(member: int) -> Callable[[int], SelectDestinations]:
        return lambda number: select(f"i{member}-{number}", server_group=in_pairs)

    found = placed_at_once(schedulers, [message(member) for member in range(28)])
    assert Counter(one.service_host for one in found if one) == Counter({f"host{n}": 2 for n in range(10)})


def test_members_that_move_at_once_break_no_rule(rig: Rig) -> None:
    rig.add_hosts(range(20))
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    apart = group("anti-affinity")
    sources = []
    for member in range(10):
        [[source]] = schedulers[0].select(select(f"i{member}", server_group=apart))
        accept(rig, instance_of(f"i{member}"), source)
        sources.append(source)

    def message(member: int) -> Callable[[int], SelectDestinations]:
        uuid, source = instance_of(f"i{member}"), sources[member]
        return lambda number: move(f"m{member}-{number}", uuid, source, server_group=apart)

    found = placed_at_once(schedulers, [message(member) for member in range(10)])
    # Each moving member has two hosts of its own: ten sources and ten destinations.
    assert len({one.service_host for one in [*sources, *found] if one}) == 20
    assert {holder.uuid for holder in rig.audit().holders} >= {instance_of(f"i{member}") for member in range(10)}
    assert len(rig.audit().holders) == 20
    assert migration_of("m0-0") in {holder.uuid for holder in rig.audit().holders}


def test_concurrent_first_members_of_an_affinity_group_are_placed_on_one_host(rig: Rig) -> None:
    rig.add_hosts(range(8), vcpus=64, memory_mb=2**20)
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    for number in range(5):
        together = group("affinity", number=number)

        def message(
            member: int, number: int = number, wanted: object = together
        ) -> Callable[[int], SelectDestinations]:
            return lambda time: select(f"i{number}-{member}-{time}", server_group=wanted)

        found = placed_at_once(schedulers, [message(member) for member in range(THREADS)])
        assert all(found)
        assert len({one.service_host for one in found if one}) == 1
