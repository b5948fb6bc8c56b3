"""The migrations of the super conductor: the order, the state until the hand-over to the cell, and the end."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, select

from conductor.engine.rows import document, encoded, of_row, text, whole_list
from conductor.schema import conductor_migrations as migrations
from conductor.schema import conductor_operations as operations
from moorage import errors
from moorage.db.columns import now
from moorage.db.forced_index import by_index
from moorage.messages import ListMigrations
from moorage.model import Explanation, Migration, MoveKind
from moorage.model.states import MigrationState

#: The final states of a migration. In any other state it is in progress, or waits to be confirmed or reverted.
OVER: tuple[MigrationState, ...] = ("confirmed", "reverted", "failed", "ended")


class SuperMigration(Migration, frozen=True, kw_only=True):
    """A migration as recorded here, with the uuid of the cell that carries it out."""

    cell_uuid: str


def add(
    connection: Connection, uuid: str, *, instance_uuid: str, cell_uuid: str, kind: MoveKind, request_id: str
) -> None:
    """Record a migration that has been ordered."""
    connection.execute(
        migrations.insert().values(
            uuid=uuid,
            instance_uuid=instance_uuid,
            cell_uuid=cell_uuid,
            request_id=request_id,
            kind=kind,
            state="placing",
            created_at=now(),
            updated_at=now(),
        )
    )


def change(
    connection: Connection,
    uuid: str,
    *,
    reason: str | None = None,
    explanation: Mapping[str, Any] | None = None,
    state: MigrationState | None = None,
    **values: str | None,
) -> None:
    """Change a migration that has not ended; an ended one is left unchanged."""
    if state is not None:
        values["state"] = state
    connection.execute(
        migrations.update()
        .where(migrations.c.uuid == uuid, migrations.c.state.not_in(OVER))
        .values(**values, **encoded({"reason": reason, "explanation": explanation}), updated_at=now())
    )


def read(connection: Connection, uuid: str) -> SuperMigration:
    """Return one migration.

    :raises MigrationNotFound: there is no such migration.
    """
    row = connection.execute(_SHOWN.where(migrations.c.uuid == uuid)).one_or_none()
    if row is None:
        raise errors.MigrationNotFound(name=uuid)
    return _migration(row)


def open_of(connection: Connection, instance_uuid: str) -> str | None:
    """Return the uuid of an instance's last migration that has not ended according to the record here, or None."""
    found = list_all(connection, ListMigrations(instance_uuid=instance_uuid))
    return found[-1].uuid if found else None


def list_all(connection: Connection, message: ListMigrations) -> list[SuperMigration]:
    """Return migrations in the order of their orders; with a limit, one page of them.

    :raises ReplyTooLarge: no limit is given, and one message cannot have all of them.
    """
    if message.limit is None:
        return whole_list(message, partial(list_all, connection))
    statement = _SHOWN.order_by(migrations.c.id).limit(message.limit)
    if message.after is not None:
        statement = statement.where(migrations.c.id > message.after)
    if message.request_id is not None:
        statement = statement.where(migrations.c.request_id == message.request_id)
    if message.instance_uuid is not None:
        statement = statement.where(migrations.c.instance_uuid == message.instance_uuid)
    if not message.ended:
        # Name the open states: by the index on the state, the database reads no ended migration.
        statement = statement.where(migrations.c.state.in_(("placing", "moving")))
        if message.request_id is None and message.instance_uuid is None:
            # The optimizer would expect to find a short page sooner along the primary key.
            statement = by_index(statement, migrations, "ix_conductor_migrations_state")
    return [_migration(row) for row in connection.execute(statement)]


def delete(connection: Connection, instance_uuids: Collection[str]) -> None:
    """Delete the migrations of instances."""
    connection.execute(migrations.delete().where(migrations.c.instance_uuid.in_(instance_uuids)))


# If an open migration is stuck, its reason is the error of the last try of its operation's next step.
_SHOWN = select(migrations, operations.c.reason.label("waits_for")).outerjoin(
    operations, (operations.c.uuid == migrations.c.uuid) & (operations.c.state == "pending")
)


def _migration(row: Row[Any]) -> SuperMigration:
    reason, explanation = text(row.reason or row.waits_for), document(row.explanation, Explanation)
    return of_row(SuperMigration, row, reason=reason, explanation=explanation, number=row.id)
