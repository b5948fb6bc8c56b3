"""Test that the instances on hosts are counted and found by the right index: one host's instances are far apart."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, RowMapping
from support.databases.statements import listening
from support.placement_store.builders import Store

from moorage import ids
from placement_store.allocations.placed import instances_by_root, instances_on
from placement_store.schema import consumers, resource_providers

ROOTS, ON_EACH = range(1, 201), 20
#: MariaDB estimates the rows of more than 200 values by the average of the index.
NAMED = 250
SAME = {"generation": 1, "created_at": 1.0, "updated_at": 1.0}

pytestmark = pytest.mark.backends("mariadb")


@pytest.fixture
def uuids(store: Store) -> list[str]:
    """The uuids of instances on 200 roots."""
    roots = [{"id": root, "uuid": ids.fresh(), "name": f"r{root}", "root_provider_id": root, **SAME} for root in ROOTS]
    placed = {"consumer_type": "INSTANCE", "project_id": "p", "user_id": "u", **SAME}
    rows: list[dict[str, Any]] = [
        {"uuid": ids.fresh(), "root_provider_id": root, "claim_id": ids.fresh(), **placed}
        for _ in range(ON_EACH)
        for root in ROOTS
    ]

    def work(connection: Connection) -> None:
        connection.execute(resource_providers.insert(), roots)
        connection.execute(consumers.insert(), rows)

    store.database.write(work)
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE consumers, resource_providers")
    return [row["uuid"] for row in rows]


def plans_of(store: Store, work: Callable[[Connection], Any]) -> list[Sequence[RowMapping]]:
    """Return the plan of each statement of ``work``."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    with store.database.engine.connect() as connection:
        with listening(connection, "after_cursor_execute", note):
            work(connection)
        return [
            connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings().all()
            for statement, parameters in sent
        ]


@pytest.mark.usefixtures("uuids")
def test_instances_are_counted_without_reading_their_rows(store: Store) -> None:
    def work(connection: Connection) -> None:
        assert instances_on(connection, ROOTS[:100]) == dict.fromkeys(ROOTS[:100], ON_EACH)

    [[plan]] = plans_of(store, work)
    assert plan["type"] == "range"
    assert "Using index" in plan["Extra"].split("; ")


def test_many_instances_are_found_by_their_uuids_and_those_of_their_migrations(store: Store, uuids: list[str]) -> None:
    def work(connection: Connection) -> None:
        found = instances_by_root(connection, uuids[:NAMED])
        assert sorted(uuid for on_root in found.values() for uuid in on_root) == sorted(uuids[:NAMED])

    by_itself, by_its_migration = plans_of(store, work)
    assert [plan["key"] for plan in by_itself if plan["table"] == "consumers"] == ["uuid"]
    assert [plan["key"] for plan in by_its_migration if plan["table"] == "consumers"] == ["ix_consumers_migration_of"]
