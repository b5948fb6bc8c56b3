"""Test the view of a migration for operators, merged from the records of the super conductor and the cell."""

import pytest
from msgspec import structs

from conductor.super.endpoints.migrations import merged
from conductor.super.records.migrations import SuperMigration
from moorage import ids
from moorage.model import Migration

UUID, INSTANCE, CELL = ids.fresh(), ids.fresh(), ids.fresh()


def record(state: str) -> SuperMigration:
    return SuperMigration(
        uuid=UUID,
        instance_uuid=INSTANCE,
        cell_uuid=CELL,
        kind="resize",
        state=state,
        source_host="h1",
        destination_host=None,
        reason=None,
        explanation=None,
        request_id="req",
        created_at=1.0,
        updated_at=2.0,
    )


def in_cell(state: str) -> Migration:
    return Migration(uuid=UUID, instance_uuid=INSTANCE, kind="resize", state=state, source_host="h1", updated_at=3.0)


@pytest.mark.parametrize(
    ("here", "there", "shown"),
    [
        ("placing", None, "placing"),
        ("placing", "placing", "placing"),
        # The cell knows that the placement has failed; the super conductor has not recorded the reason yet.
        ("placing", "failed", "placing"),
        ("placing", "ended", "placing"),
        # The cell has recorded its state before the super conductor.
        ("placing", "moving", "moving"),
        ("placing", "moved", "moved"),
        ("moving", "moved", "moved"),
        ("moving", "reverted", "reverted"),
        ("failed", "placing", "failed"),
        ("ended", "moved", "ended"),
    ],
)
def test_the_shown_state_is_merged_from_both_records(here: str, there: str | None, shown: str) -> None:
    found = merged(record(here), None if there is None else in_cell(there), "cell1", None)

    assert found.state == shown


def test_a_failed_migration_is_shown_with_its_recorded_reason() -> None:
    known = structs.replace(record("failed"), reason="no host was left")

    assert merged(known, in_cell("placing"), "cell1", None).reason == "no host was left"
