"""Test concurrent writers of providers: one of them succeeds, and the trees stay consistent."""

from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
from support.databases.statements import executed
from support.placement_store.builders import Store, assert_trees, at_once, call_between
from support.placement_store.races import beside

from moorage import ids
from moorage.messages import (
    DeleteResourceProvider,
    DeleteTrait,
    EnsureTrait,
    ReportProviders,
    SetAggregates,
    SetTraits,
    UpdateResourceProvider,
)
from moorage.model import Inventory, ProviderReport

ROUNDS = 8


def move(uuid: str, parent: str | None) -> UpdateResourceProvider:
    return UpdateResourceProvider(request_id=ids.fresh(), uuid=uuid, parent_provider_uuid=parent)


def test_one_of_several_concurrent_creations_of_a_provider_succeeds(store: Store) -> None:
    for number in range(ROUNDS):
        uuid = ids.fresh()
        outcome = at_once(*[lambda uuid=uuid, n=number: store.provider(f"p{n}", uuid)] * 4)
        assert sorted(outcome) == ["AlreadyExists"] * 3 + ["done"]


def test_two_trees_moved_below_each_other_become_one(store: Store) -> None:
    for _ in range(ROUNDS):
        one, other = store.provider(), store.provider()
        low, other_low = store.provider(parent=one), store.provider(parent=other)
        update = store.dispatcher.call

        outcome = at_once(lambda: update(move(one, other_low)), lambda: update(move(other, low)))  # noqa: B023

        assert sorted(outcome) == ["InvalidRequest", "done"]
    assert_trees(store)


def test_children_created_while_their_parent_moves_have_its_new_root(store: Store) -> None:
    one, other = store.provider(), store.provider()
    parent = store.provider(parent=one)
    for number in range(ROUNDS):
        root = (other, one)[number % 2]
        outcome = at_once(
            partial(store.dispatcher.call, move(parent, root)), *[lambda: store.provider(parent=parent)] * 3
        )
        assert outcome == ["done"] * 4
    assert_trees(store)


def test_a_parent_deleted_while_a_child_is_created_leaves_no_orphan(store: Store) -> None:
    for _ in range(ROUNDS):
        parent = store.provider()
        message = DeleteResourceProvider(request_id=ids.fresh(), uuid=parent)
        outcome = at_once(partial(store.dispatcher.call, message), partial(store.provider, parent=parent))
        assert outcome in (["done", "ProviderNotFound"], ["ProviderHasChildren", "done"])
    assert_trees(store)


# On SQLite there is no other writer during a claim.
@pytest.mark.backends("mariadb")
@pytest.mark.parametrize("kind", ["claim", "swap"])
def test_a_host_deleted_at_any_moment_of_a_claim_that_pools_serve_alone_gets_no_server(
    store: Store, other_process: Store, kind: str
) -> None:
    pool, first = store.provider("pool", DISK_GB=100), store.provider("first")
    amounts = {pool: {"DISK_GB": 1}}
    outcomes: list[tuple[str, str]] = []
    for statement in count(1):
        host, consumer = store.provider(), ids.fresh()
        write: Callable[[], object] = partial(store.claim, consumer, amounts, root=host)
        if kind == "swap":
            claim_id = store.claim(consumer, amounts, root=first).claim_id
            write = partial(store.swap, consumer, claim_id, amounts, amounts, root_provider_uuid=host)
        deletion = DeleteResourceProvider(request_id=ids.fresh(), uuid=host)
        both = beside(store.database, statement, partial(other_process.dispatcher.call, deletion), write)
        if both is None:
            break
        assert both in (("done", "ProviderInUse"), ("ProviderNotFound", "done"))
        assert both[0] != "done" or store.consumer(consumer).root_provider_uuid == host
        outcomes.append(both)
    assert len(set(outcomes)) == 2


def test_a_trait_is_either_deleted_or_given_to_a_provider(store: Store, host: str) -> None:
    for number in range(ROUNDS):
        name = f"CUSTOM_{number}"
        store.dispatcher.call(EnsureTrait(request_id=ids.fresh(), name=name))
        delete = DeleteTrait(request_id=ids.fresh(), name=name)
        give = SetTraits(request_id=ids.fresh(), uuid=host, traits=(name,))
        outcome = at_once(partial(store.dispatcher.call, delete), partial(store.dispatcher.call, give))
        assert outcome in (["done", "TraitNotFound"], ["NameInUse", "done"])
        assert (name in store.get(host).traits) == (outcome[1] == "done")


def test_aggregates_first_named_by_concurrent_writers_exist_once(store: Store) -> None:
    hosts = [store.provider() for _ in range(4)]
    aggregates = tuple(ids.fresh() for _ in range(20))
    messages = [
        SetAggregates(request_id=ids.fresh(), uuid=uuid, aggregates=aggregates[:: 1 if number % 2 else -1])
        for number, uuid in enumerate(hosts)
    ]

    outcome = at_once(*[lambda one=one: store.dispatcher.call(one) for one in messages])

    assert outcome == ["done"] * 4
    assert {store.get(uuid).aggregates for uuid in hosts} == {tuple(sorted(aggregates))}


def test_a_tree_reported_several_times_at_once_is_created_once(store: Store) -> None:
    for number in range(ROUNDS):
        root, child = ids.derived("root", number), ids.derived("child", number)
        reports = (
            ProviderReport(uuid=root, name=f"root {number}", inventories={"VCPU": Inventory(total=8)}),
            ProviderReport(uuid=child, name=f"child {number}", parent_provider_uuid=root, traits=("CUSTOM_T",)),
        )
        messages = [ReportProviders(request_id=ids.fresh(), providers=reports) for _ in range(4)]

        outcome = at_once(*[lambda one=one: store.dispatcher.call(one) for one in messages])

        assert outcome == ["done"] * 4
        assert (store.generation(root), store.generation(child)) == (1, 1)
    assert_trees(store)


# On SQLite there is no other writer during a report.
@pytest.mark.backends("mariadb")
def test_a_report_returns_only_generations_at_which_the_provider_was_as_reported(
    store: Store, other_process: Store
) -> None:
    reported = ProviderReport(uuid=ids.derived("node"), name="node", inventories={"VCPU": Inventory(total=8)})

    def report() -> int:
        message = ReportProviders(request_id=ids.fresh(), providers=(reported,))
        return store.dispatcher.call(message).generations[reported.uuid]

    report()
    with executed(store.database) as statements:
        report()

    left_alone = []
    for statement in range(1, len(statements) + 1):
        before = store.generation(reported.uuid)
        write = partial(other_process.set_inventories, reported.uuid, before, VCPU=9)
        with call_between(store.database, statement, write):
            generation = report()
        is_as_reported = store.get(reported.uuid).inventories == reported.inventories
        # The report has either read the other write and reverted it, or not read it at all.
        assert generation == (before + 2 if is_as_reported else before)
        left_alone.append(not is_as_reported)
        report()
    assert set(left_alone) == {True, False}


@pytest.mark.backends("mariadb")
def test_equal_reports_of_two_writers_at_once_write_a_provider_once(store: Store, other_process: Store) -> None:
    uuid = ids.derived("node")

    def report(to: Store, total: int) -> int:
        reported = ProviderReport(uuid=uuid, name="node", inventories={"VCPU": Inventory(total=total)})
        message = ReportProviders(request_id=ids.fresh(), providers=(reported,))
        return to.dispatcher.call(message).generations[uuid]

    report(store, 8)
    with executed(store.database) as statements:
        report(store, 9)
    unlocked = next(number for number, statement in enumerate(statements) if "FOR UPDATE" in statement)
    assert unlocked > 3

    for statement in range(1, unlocked + 1):
        before, total = store.generation(uuid), 9 + statement
        with call_between(store.database, statement, partial(report, other_process, total)):
            generation = report(store, total)
        # A report that finds the other one's inventories after the older generation returns that: it is none too new.
        assert generation <= store.generation(uuid) == before + 1


def test_one_of_several_concurrent_writers_with_the_same_generation_succeeds(store: Store, host: str) -> None:
    for number in range(1, ROUNDS):
        outcome = at_once(*[lambda n=number: store.set_inventories(host, n, VCPU=8, MEMORY_MB=8192)] * 4)
        assert sorted(outcome) == ["ProviderGenerationConflict"] * 3 + ["done"]
        assert store.generation(host) == number + 1
