"""Moves concurrent with other writes, on MariaDB: one write is first, and no sum is ever wrong."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store, at_once
from support.placement_store.move_builders import Moving

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import MoveEnded
from placement_store.schema import MAIN

ROUNDS = 25
ONE = {"VCPU": 1, "MEMORY_MB": 512}

#: The answers to the ends of a move, by outcome.
Answers = dict[str, MoveEnded]


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main", pool_size=8)
    store = Store(database)
    store.names.sync()
    yield store
    database.close()


@pytest.fixture
def hosts(store: Store) -> list[str]:
    return [store.provider(VCPU=1000, MEMORY_MB=512_000) for _ in range(3)]


@pytest.fixture
def pool(store: Store) -> str:
    return store.provider(DISK_GB=100_000)


def ending(moving: Moving, outcome: str, answers: Answers, **more: Any) -> Callable[[], None]:
    message = moving.ending(outcome, **{"guest_gone": True} | more)

    def end() -> None:
        answers[outcome] = moving.store.dispatcher.call(message)

    return end


def begun(store: Store, source: str, destination: str, pool: str) -> Moving:
    moving = Moving(store, {source: ONE, pool: {"DISK_GB": 5}}).build()
    moving.begin({destination: ONE, pool: {"DISK_GB": 2}})
    return moving


def test_of_two_concurrent_moves_of_one_instance_exactly_one_begins(store: Store, hosts: list[str], pool: str) -> None:
    source, *destinations = hosts
    for _ in range(ROUNDS):
        first = Moving(store, {source: ONE, pool: {"DISK_GB": 5}}).build()
        second = Moving(store, first.held, first.uuid, source_claim=first.source_claim, generation=first.generation)
        new = [{destination: ONE, pool: {"DISK_GB": 7}} for destination in destinations]

        outcome = at_once(partial(first.begin, new[0]), partial(second.begin, new[1]))

        won = outcome.index("done")
        # The other move is refused because of the migration, of the changed claim, or of a concurrent write.
        assert outcome[1 - won] in ("ClaimReleased", "ClaimContention", "InvalidState")
        begun_move, refused_move = (first, second) if won == 0 else (second, first)
        assert (begun_move.amounts, begun_move.migrations) == (new[won], {source: ONE})
        assert refused_move.migrations == {}
    assert store.is_sound()
    assert store.used(pool) == {"DISK_GB": 7 * ROUNDS}


def test_of_a_concurrent_confirm_and_revert_exactly_one_succeeds(store: Store, hosts: list[str], pool: str) -> None:
    source, destination, _ = hosts
    won: Counter[str] = Counter()
    for _ in range(ROUNDS):
        moving, answers = begun(store, source, destination, pool), Answers()
        outcome = at_once(ending(moving, "confirm", answers), ending(moving, "revert", answers))
        assert sorted(outcome) in (["ClaimReleased", "done"], ["ConsumerNotFound", "done"])
        [which] = answers
        won[which] += 1
        assert moving.amounts == (moving.claimed if which == "confirm" else moving.held)
        assert moving.is_buried()
    assert store.is_sound()
    assert store.used(pool) == {"DISK_GB": 2 * won["confirm"] + 5 * won["revert"]}
    assert store.used(source)["VCPU"] == won["revert"]


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_allocations_put_while_a_move_ends_are_kept_reported_as_lost_or_refused(
    store: Store, hosts: list[str], pool: str, outcome: str
) -> None:
    source, destination, _ = hosts
    seen: Counter[str] = Counter()
    for _ in range(ROUNDS):
        moving, answers = begun(store, source, destination, pool), Answers()
        more = {destination: {**ONE, "VCPU": 3}, pool: {"DISK_GB": 9}}

        ended, put = at_once(
            ending(moving, outcome, answers),
            partial(store.put, moving.uuid, more, moving.generation),
        )

        assert ended == "done"
        assert put in ("done", "ConsumerGenerationConflict", "ClaimContention")
        seen[put] += 1
        added = put == "done"
        expected = moving.claimed if outcome == "confirm" else moving.held
        vcpus = moving.amounts[next(iter(expected))]["VCPU"]
        lost = answers[outcome].extras
        assert moving.amounts[pool]["DISK_GB"] == expected[pool]["DISK_GB"] + 4 * added
        if outcome == "confirm":
            assert (vcpus, lost) == (3 if added else 1, {})
        else:
            assert vcpus == 1
            assert {uuid: part.resources for uuid, part in lost.items()} == (
                {destination: {"VCPU": 2}} if added else {}
            )
    assert store.is_sound()


def test_moves_and_claims_for_the_last_room_never_over_commit(store: Store, hosts: list[str]) -> None:
    source, *_ = hosts
    won: Counter[str] = Counter()
    for _ in range(ROUNDS):
        last = store.provider(VCPU=2, MEMORY_MB=1024)
        movings = [Moving(store, {source: ONE}).build() for _ in range(3)]
        new = [ids.fresh() for _ in range(3)]

        outcome = at_once(
            *[lambda moving=moving, last=last: moving.begin({last: ONE}) for moving in movings],
            *[lambda uuid=uuid, last=last: store.claim(uuid, {last: ONE}) for uuid in new],
        )

        assert Counter(outcome) == {"done": 2, "CapacityExceeded": 4}
        won["moves"] += outcome[:3].count("done")
        assert store.used(last) == {"VCPU": 2, "MEMORY_MB": 1024}
        for moving, came in zip(movings, outcome, strict=False):
            assert moving.amounts == ({last: ONE} if came == "done" else {source: ONE})
            assert moving.migrations == ({source: ONE} if came == "done" else {})
    assert store.is_sound()
    assert store.used(source)["VCPU"] == 3 * ROUNDS


def test_a_revert_gets_its_source_back_while_others_claim_all_free_amounts(store: Store, hosts: list[str]) -> None:
    _, destination, _ = hosts
    for _ in range(ROUNDS):
        source = store.provider(VCPU=3, MEMORY_MB=1536)
        moving, answers = Moving(store, {source: ONE}).build(), Answers()
        moving.begin({destination: ONE})
        outcome = at_once(
            ending(moving, "revert", answers),
            *[lambda source=source: store.claim(ids.fresh(), {source: ONE}) for _ in range(4)],
        )
        assert outcome[0] == "done"
        assert outcome[1:].count("done") == 2
        assert moving.amounts == {source: ONE}
    assert store.is_sound()


def test_an_instance_deleted_while_its_move_begins_is_swapped_or_ends_holds_nothing_nor_does_its_migration(
    store: Store, hosts: list[str], pool: str
) -> None:
    source, destination, third = hosts
    new = {third: ONE, pool: {"DISK_GB": 9}}
    for number in range(ROUNDS):
        moving, answers = Moving(store, {source: ONE, pool: {"DISK_GB": 5}}).build(), Answers()
        step: Callable[[], object] = partial(moving.begin, new)
        if number % 4:
            moving.begin({destination: ONE, pool: {"DISK_GB": 2}})
            endings = [ending(moving, outcome, answers) for outcome in OUTCOMES]
            steps: list[Callable[[], object]] = [partial(moving.swap, new), *endings]
            step = steps[number % 4 - 1]

        done, deleted = at_once(
            step, partial(store.delete, moving.uuid, for_good=True, migration_uuids=(moving.migration,))
        )

        assert deleted == "done"
        assert done in ("done", "ClaimReleased", "ConsumerDeleted", "ConsumerNotFound", "ClaimContention")
        assert moving.is_buried()
    assert store.rows() == {}
    assert store.is_sound()


OUTCOMES = ("confirm", "revert")


def test_an_evacuated_source_that_is_cleaned_up_during_the_confirm_is_released(store: Store, hosts: list[str]) -> None:
    source, destination, _ = hosts
    for _ in range(ROUNDS):
        moving, answers = Moving(store, {source: ONE}).build(), Answers()
        moving.begin({destination: ONE}, kind="evacuation")

        outcome = at_once(
            ending(moving, "confirm", answers, guest_gone=False, leave_residue=True),
            partial(store.delete, moving.attempt, for_good=True),
        )

        assert outcome == ["done", "done"]
        assert moving.is_buried()
    assert set(store.used(source).values()) == {0}
    assert store.is_sound()


def test_a_destination_that_is_accepted_during_the_revert_leaves_a_residue_or_is_refused(
    store: Store, hosts: list[str]
) -> None:
    source, destination, _ = hosts
    for _ in range(ROUNDS):
        moving, answers = Moving(store, {source: ONE}).build(), Answers()
        moving.begin({destination: ONE})

        reverted, accepted = at_once(
            ending(moving, "revert", answers, guest_gone=False, leave_residue=True),
            moving.accept,
        )

        assert reverted == "done"
        residue = answers["revert"].residue_uuid
        assert (accepted, residue) in (("done", moving.next_attempt), ("ClaimReleased", None))
        assert moving.amounts == {source: ONE}
        with pytest.raises(errors.ClaimReleased):
            moving.accept()
    assert store.is_sound()
