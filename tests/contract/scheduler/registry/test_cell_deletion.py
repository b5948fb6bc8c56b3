"""Test that a cell is deleted only without hosts, also while one of its conductors reports a new host."""

from contextlib import closing
from functools import partial
from itertools import count

import pytest
from sqlalchemy import select
from support.databases.statements import statements_of
from support.placement_store.races import beside
from support.scheduler.rig import Rig, report

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ReportHosts
from placement_store import cells
from placement_store.schema import hosts as host_table


def test_a_cell_with_hosts_is_not_deleted(rig: Rig) -> None:
    rig.add_hosts([1])

    with pytest.raises(errors.InvalidState):
        cells.delete(rig.database, "cell0")

    assert cells.delete(rig.database, "cell1", dry_run=True) == cells.delete(rig.database, "cell1")
    assert [cell.name for cell in cells.list_cells(rig.database)] == ["cell0"]


def test_the_consumers_of_a_large_cell_are_not_all_counted_nor_with_a_lock_on_the_cell(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_COUNTED", 2)
    rig.add_hosts([1, 2])
    rig.take(1, vcpus=1)
    for are in ("and 1", "and at least 2", "and at least 2"):
        with (
            statements_of(rig.database) as statements,
            pytest.raises(errors.InvalidState, match=f"2 hosts, {are} consumers are on them"),
        ):
            cells.delete(rig.database, "cell0")
        [counted] = [place for place, one in enumerate(statements) if "allocations" in one]
        assert "COMMIT" in statements[counted - 1]
        rig.take(2, vcpus=1)


# On SQLite there is no other writer during a report.
@pytest.mark.parametrize("rig", ["mariadb"], indirect=True)
@pytest.mark.servers
@pytest.mark.parametrize("is_alive", [False, True])
def test_a_cell_deleted_at_any_moment_of_a_report_leaves_no_host(rig: Rig, is_alive: bool) -> None:
    outcomes = set()
    with closing(Database(rig.url, "main")) as again:
        for statement in count(1):
            cell = cells.create(rig.database, name=f"cell {statement}", uuid=ids.fresh())
            described = report(statement)
            message = ReportHosts(
                request_id=ids.fresh(),
                cell_uuid=cell.uuid,
                hosts=(described,),
                alive=(described.service_host,) if is_alive else (),
                alive_at=1.0,
            )
            deletion = partial(cells.delete, again, cell.name)
            both = beside(rig.database, statement, deletion, partial(rig.host_reports.report_hosts, message))
            if both is None:
                break
            assert both in (("done", "InvalidState"), ("CellNotFound", "done"))
            outcomes.add(both)
    assert len(outcomes) == 2
    known = {cell.uuid for cell in cells.list_cells(rig.database)}
    assert rig.database.read(lambda c: set(c.scalars(select(host_table.c.cell_uuid)))) <= known
