"""Test the allocations of a provider, and the usages of a project by user and consumer type."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection
from support.databases.rows_read import rows_read
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.messages import ListProviderAllocations, ListUsages
from moorage.model import ConsumerHold, ProviderAllocations, Usage
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.providers.usages import of_provider
from placement_store.schema import allocations, consumers, resource_providers

#: More consumers of a pool than a page has.
MANY, PAGE = 4_000, 100
ONE, TWO, THREE = (ids.derived(name) for name in ("one", "two", "three"))


def usages(store: Store, project_id: str, **more: Any) -> list[Usage]:
    return store.dispatcher.call(ListUsages(project_id=project_id, **more))


def test_the_allocations_of_a_provider_are_listed_by_consumer_with_its_generation(store: Store, host: str) -> None:
    other = store.provider("other", VCPU=8)
    store.put(ONE, {host: {"VCPU": 2, "MEMORY_MB": 512}, other: {"VCPU": 1}})
    store.put(ONE, {host: {"VCPU": 3, "MEMORY_MB": 512}, other: {"VCPU": 1}}, 1)
    store.put(TWO, {host: {"VCPU": 1}})

    found = store.dispatcher.call(ListProviderAllocations(uuid=host))

    assert found == ProviderAllocations(
        generation=store.generation(host),
        allocations={
            ONE: ConsumerHold(resources={"VCPU": 3, "MEMORY_MB": 512}, consumer_generation=2),
            TWO: ConsumerHold(resources={"VCPU": 1}, consumer_generation=1),
        },
    )


def test_a_new_provider_has_no_allocations_and_an_unknown_one_is_not_found(store: Store, host: str) -> None:
    found = store.dispatcher.call(ListProviderAllocations(uuid=host))
    assert found == ProviderAllocations(generation=1)
    with pytest.raises(errors.ProviderNotFound):
        store.dispatcher.call(ListProviderAllocations(uuid=ids.fresh()))


@pytest.mark.backends("mariadb")
def test_a_page_of_the_consumers_of_a_pool_or_of_a_host_does_not_sort_all_of_them(store: Store, host: str) -> None:
    pool = store.provider("pool", DISK_GB=8)
    number = bulk.pairs(resource_providers.c.uuid, resource_providers.c.id)
    same = {"project_id": "p", "user_id": "u", "generation": 1, "created_at": 1.0, "updated_at": 1.0}
    rows: list[dict[str, Any]] = [{"id": id_, "uuid": ids.derived("many", id_), **same} for id_ in range(1, MANY)]
    held = {"resource_class_id": 2, "used": 1}

    def work(connection: Connection) -> None:
        id_of = dict(number.rows(connection, [pool, host]))
        connection.execute(consumers.insert(), rows)
        for provider, some in ((pool, rows), (host, rows[:3])):
            on_provider = [{"consumer_id": row["id"], "resource_provider_id": id_of[provider], **held} for row in some]
            connection.execute(allocations.insert(), on_provider)

    store.database.write(work)
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE consumers, allocations")
    names, uuids = ResourceClassNames(store.database), sorted(row["uuid"] for row in rows)

    def read_page(page: ListProviderAllocations, connection: Connection) -> ProviderAllocations:
        return of_provider(connection, page, names)

    for provider, after, wanted in (
        (pool, None, uuids[:PAGE]),
        (pool, uuids[MANY // 2], uuids[MANY // 2 + 1 :][:PAGE]),
        (host, None, sorted(row["uuid"] for row in rows[:3])),
    ):
        page = ListProviderAllocations(uuid=provider, limit=PAGE, after=after)
        found, read = rows_read(store.database, partial(read_page, page))
        assert list(found.allocations) == wanted
        # Each allocation of a small pool may be read once; of a large one, MariaDB reads only those of the page.
        assert read < 2 * MANY


def test_usages_are_summed_over_providers_and_consumers_by_type(store: Store, host: str) -> None:
    other = store.provider("other", VCPU=8)
    store.put(ONE, {host: {"VCPU": 2, "MEMORY_MB": 512}, other: {"VCPU": 1}})
    store.put(TWO, {host: {"VCPU": 1}}, user_id="somebody")
    store.put(THREE, {other: {"VCPU": 4}}, consumer_type="MIGRATION")
    store.put(ids.fresh(), {host: {"VCPU": 1}}, project_id="another")

    instances = Usage(consumer_type="INSTANCE", consumer_count=2, resources={"MEMORY_MB": 512, "VCPU": 4})
    migrations = Usage(consumer_type="MIGRATION", consumer_count=1, resources={"VCPU": 4})

    assert usages(store, "project") == [instances, migrations]
    assert usages(store, "project", consumer_type="MIGRATION") == [migrations]
    assert usages(store, "project", user_id="somebody") == [
        Usage(consumer_type="INSTANCE", consumer_count=1, resources={"VCPU": 1})
    ]
    assert usages(store, "project", user_id="somebody", consumer_type="MIGRATION") == []
    assert usages(store, "nobody") == []


def test_a_consumer_without_allocations_is_not_counted(store: Store, host: str) -> None:
    store.put(ONE, {host: {"VCPU": 2}})
    store.put(ONE, {}, 1)
    assert usages(store, "project") == []


def test_a_consumer_without_a_type_has_the_type_unknown(store: Store, host: str) -> None:
    store.put(ONE, {host: {"VCPU": 2}})
    statement = consumers.update().values(consumer_type=None)
    store.database.write(lambda connection: connection.execute(statement))

    unknown = [Usage(consumer_type="UNKNOWN", consumer_count=1, resources={"VCPU": 2})]

    assert usages(store, "project") == unknown
    assert usages(store, "project", consumer_type="UNKNOWN") == unknown
    assert usages(store, "project", consumer_type="INSTANCE") == []
