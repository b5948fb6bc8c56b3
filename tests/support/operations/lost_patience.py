"""Let time pass for one instance only: its attempts time out now, independently of their real age."""

from collections.abc import Collection

import msgspec
from sqlalchemy import Connection, select

from conductor.cell.payloads import StartStep
from conductor.cell.steps.start import TIMED_OUT
from conductor.engine.rows import text
from conductor.schema import cell_attempts, cell_operations
from moorage.db.database import Database


def run_out(database: Database, instance_uuid: str, hosts: Collection[str]) -> int:
    """Let the attempts of an instance time out on these hosts, which have accepted a claim.

    :returns: the number of attempts on them that have timed out so far.
    """
    return database.write(lambda connection: _run_out(connection, instance_uuid, hosts))


def _run_out(connection: Connection, instance_uuid: str, hosts: Collection[str]) -> int:
    attempts = connection.execute(
        select(cell_attempts).where(cell_attempts.c.instance_uuid == instance_uuid, cell_attempts.c.host.in_(hosts))
    ).all()
    waiting = [msgspec.json.encode(StartStep(number=row.number)) for row in attempts if row.state == "building"]
    # The next worker that looks for due operations finds that their time is over.
    table = cell_operations.c
    connection.execute(
        cell_operations.update()
        .where(table.subject == instance_uuid, table.state == "pending")
        .where(table.step == "wait", table.payload.in_(waiting))
        .values(due_at=0.0)
    )
    return sum(text(row.reason) == TIMED_OUT for row in attempts)


def end_patience(database: Database, instance_uuid: str) -> None:
    """Make all operations under way of an instance older than `[conductor] delete_patience`."""
    table = cell_operations.c
    aged = cell_operations.update().where(table.subject == instance_uuid, table.state == "pending")
    database.write(lambda connection: connection.execute(aged.values(created_at=table.created_at - 3600.0)))
