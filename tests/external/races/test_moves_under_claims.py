"""Claims in provider trees that change at the same time, on MariaDB: the first writer succeeds, and none deadlocks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store, assert_trees, at_once
from support.placement_store.races import status, wait_for_row_lock_wait

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ReportProviders, UpdateResourceProvider
from moorage.model import ProviderReport
from placement_store.claims import claim as claims
from placement_store.db import names
from placement_store.providers import tree as trees
from placement_store.schema import MAIN

TURNS = 60


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main")
    names.sync(database)
    yield Store(database)
    database.close()


def move(uuid: str, parent: str | None) -> UpdateResourceProvider:
    return UpdateResourceProvider(request_id=ids.fresh(), uuid=uuid, parent_provider_uuid=parent)


@pytest.fixture
def tree(store: Store) -> tuple[str, str, str]:
    """A host with a GPU, and another host. The GPU has the lower id: locking by depth would lock in another order."""
    gpu = store.provider("gpu", VGPU=1000)
    host, other = store.provider("host", VCPU=1000), store.provider("other", VCPU=1000)
    store.dispatcher.call(move(gpu, host))
    return host, gpu, other


def test_claims_in_a_subtree_that_moves_within_its_tree_all_succeed_without_a_deadlock(
    store: Store, tree: tuple[str, str, str]
) -> None:
    host, gpu, other = tree
    numa = store.provider("numa", parent=host)
    before = status(store, "Innodb_deadlocks")

    def claim_and_release(number: int) -> None:
        for turn in range(TURNS):
            consumer = ids.derived("c", number, turn)
            store.claim(consumer, {host: {"VCPU": 1}, gpu: {"VGPU": 1}})
            store.claim(ids.derived("d", number, turn), {other: {"VCPU": 1}})
            store.delete(consumer)

    def moves() -> None:
        for turn in range(TURNS):
            store.dispatcher.call(move(gpu, (numa, host)[turn % 2]))
            with pytest.raises(errors.ProviderInUse):
                store.dispatcher.call(move(host, other))

    store.claim(ids.derived("guest"), {host: {"VCPU": 1}, gpu: {"VGPU": 1}})
    assert at_once(*[lambda number=number: claim_and_release(number) for number in range(3)], moves) == ["done"] * 4

    assert status(store, "Innodb_deadlocks") == before
    assert store.used(gpu) == {"VGPU": 1}
    assert store.is_sound()
    assert_trees(store)


@contextmanager
def begun(store: Store, work: Callable[[Connection], object]) -> Iterator[None]:
    """Do some work in a transaction that is committed when the block ends."""
    with store.database.engine.connect() as connection, connection.begin():
        work(connection)
        yield


def test_a_move_waits_for_a_claim_that_is_being_made_and_is_then_refused(
    store: Store, tree: tuple[str, str, str]
) -> None:
    host, gpu, other = tree
    new = store.new_claim(ids.derived("c"), {host: {"VCPU": 1}, gpu: {"VGPU": 1}})
    with ThreadPoolExecutor(1) as thread:
        with begun(store, lambda connection: claims.claim(connection, [new], store.names)):
            moved = thread.submit(store.dispatcher.call, move(gpu, other))
            wait_for_row_lock_wait(store, moved)
        with pytest.raises(errors.ProviderInUse):
            moved.result()
    assert store.get(gpu).root_provider_uuid == host


def test_a_claim_waits_for_a_move_of_its_provider_and_is_then_refused(store: Store, tree: tuple[str, str, str]) -> None:
    host, gpu, other = tree
    consumer = ids.derived("c")
    with ThreadPoolExecutor(1) as thread:
        with begun(store, lambda connection: trees.update(connection, move(gpu, other))):
            claimed = thread.submit(store.claim, consumer, {gpu: {"VGPU": 1}}, root=host)
            wait_for_row_lock_wait(store, claimed)
        with pytest.raises(errors.ClaimContention):
            claimed.result()
    assert (store.used(gpu), store.get(gpu).root_provider_uuid) == ({"VGPU": 0}, other)
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(consumer)


def test_the_creation_of_a_child_waits_for_the_move_of_its_parent_and_uses_the_new_tree(
    store: Store, tree: tuple[str, str, str]
) -> None:
    _, gpu, other = tree
    with ThreadPoolExecutor(1) as thread:
        with begun(store, lambda connection: trees.update(connection, move(gpu, other))):
            child = thread.submit(store.provider, parent=gpu)
            wait_for_row_lock_wait(store, child)
        assert store.get(child.result()).root_provider_uuid == other
    assert_trees(store)


def test_a_report_waits_for_a_claim_that_is_being_made_and_is_then_stale(
    store: Store, tree: tuple[str, str, str]
) -> None:
    host, _, _ = tree
    new = store.new_claim(ids.derived("c"), {host: {"VCPU": 1}})
    found = ProviderReport(uuid=host, name="host", inventories={}, generation=store.generation(host))
    report = ReportProviders(request_id=ids.fresh(), providers=(found,))
    with ThreadPoolExecutor(1) as thread:
        with begun(store, lambda connection: claims.claim(connection, [new], store.names)):
            reported = thread.submit(store.dispatcher.call, report)
            wait_for_row_lock_wait(store, reported)
        with pytest.raises(errors.ProviderGenerationConflict) as caught:
            reported.result()
    assert (caught.value.named, caught.value.found) == (found.generation, store.generation(host))
