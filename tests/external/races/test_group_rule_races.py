"""Members of server groups that come at the same moment, on MariaDB: the rule is kept, and nobody waits in a circle.

`make test` has few rounds of each; with DRILLS=long in the environment there are ten times as many.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from sqlalchemy import Connection, text
from support.placement_store.builders import Store, at_once
from support.placement_store.group_builders import ONE, Groups

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
    """One for all tests: each makes groups and hosts of its own."""
    database = Database(mariadb.create_database("group_rule_races"), "main", lock_wait=60)
    MAIN.upgrade(database)
    yield Store(database)
    database.close()


@pytest.fixture
def groups(store: Store) -> Groups:
    return Groups(store)


# --- All at once ------------------------------------------------------------------------------------------------------


def test_of_two_hundred_claims_by_eight_writers_each_host_takes_as_many_as_the_rule_says(
    groups: Groups, store: Store
) -> None:
    host = groups.host()
    # Who claims of the same provider waits for its row, and then sees the other's member anyway.
    nodes = [store.provider(parent=host, VCPU=1000) for _ in range(WRITERS)]
    for number in range(CLAIMS // WRITERS * TIMES):
        most = 1 + number % 3
        group = groups.group("anti-affinity", most)
        if number % 5:
            created(groups, group)
        new = [store.new_claim(ids.fresh(), {node: ONE}, group=group, root=host) for node in nodes]

        came = at_once(*[lambda one=one: store.claim_all([one]) for one in new])

        assert Counter(came) == {"done": most, "GroupRuleRefused": WRITERS - most}
        assert on_hosts(groups, group) == {host: most}
    assert store.is_sound()


def test_writers_of_the_same_groups_never_wait_for_each_other_in_a_circle(groups: Groups, store: Store) -> None:
    hosts, pools = [groups.host() for _ in range(10)], [store.provider(VCPU=100_000) for _ in range(3)]
    both = [groups.group("anti-affinity", 1000), groups.group("anti-affinity", 1000)]
    for group in both:
        created(groups, group)
    before = counted(store, "Innodb_deadlocks")

    def claim(number: int) -> str:
        chance = Random(number)
        two = [
            store.new_claim(ids.fresh(), {chance.choice(hosts): ONE, chance.choice(pools): ONE}, group=group)
            for group in chance.sample(both, 2)
        ]
        return outcome(lambda: store.claim_all(two))

    with ThreadPoolExecutor(WRITERS) as threads:
        assert Counter(threads.map(claim, range(CLAIMS // 2 * TIMES))) == {"done": CLAIMS // 2 * TIMES}

    assert counted(store, "Innodb_deadlocks") == before


def test_an_affinity_group_that_many_are_the_first_of_is_on_one_host(groups: Groups) -> None:
    hosts = [groups.host() for _ in range(WRITERS)]
    for number in range(25 * TIMES):
        group = groups.group("affinity")
        if number % 5:
            created(groups, group)

        came = at_once(*[lambda host=host, group=group: groups.claim(group, host) for host in hosts])

        assert sorted(came) == ["GroupRuleRefused"] * (WRITERS - 1) + ["done"]
        assert len(on_hosts(groups, group)) == 1


def on_hosts(groups: Groups, group: ServerGroup) -> Counter[str]:
    """How many members are on each host, counted one by one."""
    roots = [groups.store.consumer(uuid).root_provider_uuid for uuid in groups.shown(group).members]
    return Counter(root for root in roots if root is not None)


# --- One has begun, and the other waits -------------------------------------------------------------------------------


def test_who_joins_while_the_only_member_begins_to_move_waits_and_is_refused(groups: Groups) -> None:
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


def test_who_names_a_group_that_another_is_creating_waits_and_finds_it(groups: Groups) -> None:
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


@pytest.mark.parametrize("policy", ["anti-affinity", "soft-affinity"])
def test_a_group_is_deleted_or_joined(groups: Groups, policy: GroupPolicy) -> None:
    host, group = groups.host(), groups.group(policy)
    created(groups, group)
    new = groups.store.new_claim(ids.fresh(), {host: ONE}, group=group)
    delete = DeleteServerGroup(request_id=ids.fresh(), uuid=group.uuid)

    # What finds its group gone is begun again by whoever claims, and creates it anew.
    joins = outcome_after(
        groups.store,
        lambda connection: rows.delete(connection, delete),
        lambda: groups.claim(group, host),
    )
    assert joins == "ClaimContention"
    created(groups, group)
    goes = outcome_after(
        groups.store,
        lambda connection: claims.claim(connection, [new], groups.store.names),
        lambda: groups.dispatcher.call(delete),
    )
    assert goes == "InvalidState"
    assert groups.shown(group).members == {new.consumer_uuid: host}


# --- Parts ------------------------------------------------------------------------------------------------------------


def created(groups: Groups, group: ServerGroup) -> None:
    create = CreateServerGroup(request_id=ids.fresh(), group=group, name="group", project_id="project")
    groups.dispatcher.call(create)


def outcome(write: Callable[[], object]) -> str:
    try:
        write()
    except errors.MoorageError as refused:
        return type(refused).__name__
    return "done"


def counted(store: Store, what: str) -> int:
    query = text(f"SHOW GLOBAL STATUS LIKE '{what}'")
    return int(store.database.read(lambda connection: connection.execute(query).one()[1]))


def outcome_after(store: Store, first: Callable[[Connection], object], second: Callable[[], object]) -> str:
    """Have the second wait for what the first has begun; commit that, and return what comes of the second."""
    with ThreadPoolExecutor(1) as thread:
        with store.database.engine.connect() as connection, connection.begin():
            first(connection)
            waiting = thread.submit(outcome, second)
            until = time.monotonic() + 60
            while not counted(store, "Innodb_row_lock_current_waits") and not waiting.done():
                assert time.monotonic() < until, "nobody waits"
                time.sleep(0.01)
            assert not waiting.done()
        return waiting.result()
