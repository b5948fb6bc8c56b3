"""Test that the instances on hosts are counted by an index alone: the rows of one host's instances are far apart."""

from typing import Any

import pytest
from sqlalchemy import event
from support.placement_store.builders import Store

from moorage import ids
from placement_store.allocations.placed import instances_on
from placement_store.schema import consumers

ROOTS, ON_EACH = range(1, 201), 20

pytestmark = pytest.mark.backends("mariadb")


def test_instances_are_counted_without_reading_their_rows(store: Store) -> None:
    same = {"project_id": "p", "user_id": "u", "generation": 1, "created_at": 1.0, "updated_at": 1.0}
    rows: list[dict[str, Any]] = [
        {"uuid": ids.fresh(), "consumer_type": "INSTANCE", "root_provider_id": root, "claim_id": ids.fresh(), **same}
        for _ in range(ON_EACH)
        for root in ROOTS
    ]
    store.database.write(lambda connection: connection.execute(consumers.insert(), rows))
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE consumers")
        sent: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            sent.append((statement, parameters))

        event.listen(connection, "after_cursor_execute", note)
        assert instances_on(connection, ROOTS[:100]) == dict.fromkeys(ROOTS[:100], ON_EACH)
        event.remove(connection, "after_cursor_execute", note)
        [(statement, parameters)] = sent
        [plan] = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings()
    assert plan["type"] == "range"
    assert "Using index" in plan["Extra"].split("; ")
