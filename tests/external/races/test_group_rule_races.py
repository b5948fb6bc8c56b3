"""Concurrent claims for members of server groups, on MariaDB: no rule is broken, and there is no deadlock.

`make test` runs a few rounds of each test; with DRILLS=long in the environment there are ten times as many.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from sqlalchemy import Connection
from support.placement_store.builders import Store, at_once, outcome
from support.placement_store.group_builders import ONE, Groups
from support.placement_store.races import status, wait_for_row_lock_wait

from harness.servers import MariaDBServer
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import CreateServerGroup, DeleteServerGroup
from moorage.model import GroupPolicy, ServerGroup
from placement_store.claims import begin_move
from placement_store.claims import claim as claims
from placement_store.schema import MAIN
from placement_store.server_groups import rows

TIMES = 10 if os.environ.get("DRILLS") == "long" else 1
WRITERS, CLAIMS = 8, 200


@pytest.fixture(scope="module")
def store(mariadb: MariaDBServer) -> Iterator[Store]:
    """One store for all tests: each test creates its own groups and hosts."""
    database = Database(mariadb.create_database("group_rule_races"), "main", lock_wait=60)
    MAIN.upgrade(database)
    yield Store(database)
    database.close()


@pytest.fixture
def groups(store: Store) -> Groups:
    return Groups(store)


# --- Many writers -----------------------------------------------------------------------------------------------------


def test_of_two_hundred_claims_by_eight_writers_each_host_takes_as_many_as_the_rule_says(
    groups: Groups, store: Store
) -> None:
    host = groups.host()
    # Writers of the same provider would wait for its row, and then see each other's member in any case.
    nodes = [store.provider(parent=host, VCPU=1000) for _ in range(WRITERS)]
    for number in range(CLAIMS // WRITERS * TIMES):
        most = 1 + number % 3
        group = groups.group("anti-affinity", most)
        if number % 5:
            created(groups, group)
        new = [store.new_claim(ids.fresh(), {node: ONE}, group=group, root=host) for node in nodes]

        outcomes = at_once(*[lambda one=one: store.claim_all([one]) for one in new])

        assert Counter(outcomes) == {"done": most, "GroupRuleRefused": WRITERS - most}
        assert on_hosts(groups, group) == {host: most}
    assert store.is_sound()


def test_writers_of_the_same_groups_never_deadlock(groups: Groups, store: Store) -> None:
    hosts, pools = [groups.host() for _ in range(10)], [store.provider(VCPU=100_000) for _ in range(3)]
    both = [groups.group("anti-affinity", 1000), groups.group("anti-affinity", 1000)]
    for group in both:
        created(groups, group)
    before = status(store, "Innodb_deadlocks")

    def claim(number: int) -> str:
        chance = Random(number)
        two = [
            store.new_claim(ids.fresh(), {chance.choice(hosts): ONE, chance.choice(pools): ONE}, group=group)
            for group in chance.sample(both, 2)
        ]
        return outcome(lambda: store.claim_all(two))

    with ThreadPoolExecutor(WRITERS) as threads:
        assert Counter(threads.map(claim, range(CLAIMS // 2 * TIMES))) == {"done": CLAIMS // 2 * TIMES}

    assert status(store, "Innodb_deadlocks") == before


def test_concurrent_first_members_of_an_affinity_group_are_on_one_host(groups: Groups) -> None:
    hosts = [groups.host() for _ in range(WRITERS)]
    for number in range(25 * TIMES):
        group = groups.group("affinity")
        if number % 5:
            created(groups, group)

        outcomes = at_once(*[lambda host=host, group=group: groups.claim(group, host) for host in hosts])

        assert sorted(outcomes) == ["GroupRuleRefused"] * (WRITERS - 1) + ["done"]
        assert len(on_hosts(groups, group)) == 1


def on_hosts(groups: Groups, group: ServerGroup) -> Counter[str]:
    """Count the members on each host by reading each member."""
    roots = [groups.store.consumer(uuid).root_provider_uuid for uuid in groups.shown(group).members]
    return Counter(root for root in roots if root is not None)


# --- One transaction waits for the other ------------------------------------------------------------------------------


def test_a_claim_that_joins_a_group_while_its_only_member_begins_to_move_waits_and_is_refused(groups: Groups) -> None:
    home, away, third = (groups.host() for _ in range(3))
    group = groups.group("affinity")
    member = groups.claim(group, home)
    groups.accept(member)
    new, move = groups.moving(member, away)

    came = outcome_after(
        groups.store,
        lambda connection: begin_move.begin(connection, new, move, groups.store.names),
        lambda: groups.claim(group, third),
    )

    assert came == "GroupRuleRefused"


def test_a_member_that_begins_to_move_while_another_joins_waits_and_is_refused(groups: Groups) -> None:
    home, away = groups.host(), groups.host()
    group = groups.group("affinity")
    member = groups.claim(group, home)
    groups.accept(member)
    new = groups.store.new_claim(ids.fresh(), {home: ONE}, group=group)

    came = outcome_after(
        groups.store,
        lambda connection: claims.claim(connection, [new], groups.store.names),
        lambda: groups.move(member, away),
    )

    assert came == "GroupRuleRefused"
    assert groups.places()[member.uuid] == {home}


def test_a_claim_that_names_a_group_which_another_is_creating_waits_and_finds_it(groups: Groups) -> None:
    group = groups.group("affinity")
    hosts = groups.host(), groups.host()
    new = groups.store.new_claim(ids.fresh(), {hosts[0]: ONE}, group=group)

    came = outcome_after(
        groups.store,
        lambda connection: claims.claim(connection, [new], groups.store.names),
        lambda: groups.claim(group, hosts[1]),
    )

    assert came == "GroupRuleRefused"
    assert groups.shown(group).members == {new.consumer_uuid: hosts[0]}


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity", "soft-affinity"])
@pytest.mark.parametrize("by_pruning", [False, True], ids=["deleted", "pruned"])
def test_a_claim_with_a_group_that_its_decision_has_read_waits_for_a_deletion_and_is_refused_whole(
    groups: Groups, policy: GroupPolicy, by_pruning: bool
) -> None:
    host, group = groups.host(), groups.group(policy)
    groups.delete(groups.claim(group, host))
    known = groups.store.database.read(lambda connection: rows.bind(connection, [group]))
    new = groups.store.new_claim(ids.fresh(), {host: ONE}, group=group)
    delete = DeleteServerGroup(request_id=ids.fresh(), uuid=group.uuid)

    def join(connection: Connection) -> object:
        return claims.claim(connection, [new], groups.store.names, groups=known)

    joined = outcome_after(
        groups.store,
        lambda connection: (
            rows.delete_without_members(connection, [group.uuid]) if by_pruning else rows.delete(connection, delete)
        ),
        lambda: groups.store.database.write(join),
    )

    assert joined == "ClaimContention"
    with pytest.raises(errors.ConsumerNotFound):
        groups.store.consumer(new.consumer_uuid)


@pytest.mark.parametrize("policy", ["anti-affinity", "soft-affinity"])
def test_of_a_deletion_of_a_group_and_a_claim_that_joins_it_only_the_first_succeeds(
    groups: Groups, policy: GroupPolicy
) -> None:
    host, group = groups.host(), groups.group(policy)
    created(groups, group)
    new = groups.store.new_claim(ids.fresh(), {host: ONE}, group=group)
    delete = DeleteServerGroup(request_id=ids.fresh(), uuid=group.uuid)

    # The client of such a claim repeats it, and the repetition creates the group again.
    joined = outcome_after(
        groups.store,
        lambda connection: rows.delete(connection, delete),
        lambda: groups.claim(group, host),
    )
    assert joined == "ClaimContention"
    created(groups, group)
    deleted = outcome_after(
        groups.store,
        lambda connection: claims.claim(connection, [new], groups.store.names),
        lambda: groups.dispatcher.call(delete),
    )
    assert deleted == "InvalidState"
    assert groups.shown(group).members == {new.consumer_uuid: host}


# --- Parts ------------------------------------------------------------------------------------------------------------


def created(groups: Groups, group: ServerGroup) -> None:
    create = CreateServerGroup(request_id=ids.fresh(), group=group, name="group", project_id="project")
    groups.dispatcher.call(create)


def outcome_after(store: Store, first: Callable[[Connection], object], second: Callable[[], object]) -> str:
    """Start the second write while the first is not committed; commit the first, and return the second's outcome."""
    with ThreadPoolExecutor(1) as thread:
        with store.database.engine.connect() as connection, connection.begin():
            first(connection)
            waiting = thread.submit(outcome, second)
            wait_for_row_lock_wait(store, waiting)
        return waiting.result()
