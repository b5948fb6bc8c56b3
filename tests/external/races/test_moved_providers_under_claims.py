"""Providers that are moved to another tree while their consumers are claimed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store
from support.placement_store.races import wait_for_row_lock_wait

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import UpdateResourceProvider
from placement_store.claims import claim as claims
from placement_store.schema import MAIN


@pytest.fixture
def store(migrated_mariadb: OnMariaDB) -> Iterator[Store]:
    database = Database(migrated_mariadb.url(MAIN), "main", pool_size=4)
    store = Store(database)
    store.names.sync()
    yield store
    database.close()


def test_a_provider_stays_in_the_tree_of_the_host_on_which_its_consumer_is_being_claimed(store: Store) -> None:
    # The claim touches only one child: neither the root nor the provider whose amounts the consumer keeps.
    root, other, uuid = store.provider(), store.provider(), ids.fresh()
    child, held = store.provider(parent=root, VCPU=8), store.provider(parent=root, VGPU=8)
    generation = store.put(uuid, {held: {"VGPU": 1}})
    new = store.new_claim(uuid, {child: {"VCPU": 1}}, root=root, consumer_generation=generation)
    leave = UpdateResourceProvider(request_id=ids.fresh(), uuid=held, parent_provider_uuid=other)
    written, may_end = threading.Event(), threading.Event()

    def claim(connection: Connection) -> None:
        claims.claim(connection, [new], store.names, keep_held=True)
        written.set()
        may_end.wait(120)

    with ThreadPoolExecutor(2) as threads:
        claiming = threads.submit(store.database.write, claim)
        try:
            assert written.wait(60)
            leaving = threads.submit(store.dispatcher.call, leave)
            wait_for_row_lock_wait(store, leaving)
        finally:
            may_end.set()
        claiming.result()
        with pytest.raises(errors.ProviderInUse):
            leaving.result()
    assert store.held(uuid) == {child: {"VCPU": 1}, held: {"VGPU": 1}}
    assert store.get(held).root_provider_uuid == root
