"""Serve reads of migrations: the super conductor's record, merged with the record of the migration's cell."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import cast

from sqlalchemy import Connection

from conductor.engine.rows import grouped
from conductor.super.cell_clients import concurrently
from conductor.super.context import SuperPart
from conductor.super.records import migrations as super_migrations
from conductor.super.records.migrations import OVER, SuperMigration
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import MAX_INSTANCES, ListMigrations, ListMigrationsInCell, ShowMigration
from moorage.model import Migration
from moorage.model.states import MigrationState
from moorage.service.process import is_stopping

LOG = logging.getLogger(__name__)


class SuperMigrationView(SuperPart):
    """Serves reads of migrations. If a cell does not answer, its migrations are returned as recorded here."""

    @serves(ShowMigration)
    def show(self, message: ShowMigration) -> Migration:
        """Return one migration.

        :raises MigrationNotFound: there is no such migration.
        """
        known = self._super.database.read(lambda connection: super_migrations.read(connection, message.uuid))
        return self._with_cells([known])[0]

    @serves(ListMigrations)
    def list_migrations(self, message: ListMigrations) -> list[Migration]:
        """Return migrations, in the order of their orders."""
        known = self._super.database.read(lambda connection: super_migrations.list_all(connection, message))
        shown = self._with_cells(known)
        if message.ended or message.limit is not None:
            # Do not filter a page: the client takes a short page for the last one.
            return shown
        return [migration for migration in shown if migration.state not in OVER]

    def sync_with_cells(self) -> None:
        """Poll the cells for the open migrations, and record those that have ended.

        :raises StoreUnavailable: the records cannot be reached.
        """
        after = None
        while not is_stopping():
            page = ListMigrations(limit=MAX_INSTANCES, after=after)
            known = self._super.database.read(partial(super_migrations.list_all, message=page))
            self._with_cells(known)
            if len(known) < MAX_INSTANCES:
                return
            after = known[-1].number

    def _with_cells(self, known: Sequence[SuperMigration]) -> list[Migration]:
        """Merge the migrations with the records of their cells; record which ones have ended there."""
        merged = concurrently(self._of_cell, grouped((migration.cell_uuid, migration) for migration in known))
        # If a migration is still being placed, its operation records the end, with the explanation.
        over = [merged[one.uuid] for one in known if one.state == "moving" and merged[one.uuid].state in OVER]
        if over:
            self._super.database.write(lambda connection: _note_over(connection, over))
        return [merged[one.uuid] for one in known]

    def _of_cell(self, cell_uuid: str, known: Sequence[SuperMigration]) -> dict[str, Migration]:
        found: dict[str, Migration] = {}
        cell, fault = None, None
        try:
            cell = self._super.cells.cell(cell_uuid).name
            uuids = [one.uuid for one in known]
            for one in self._super.cells.read_of(cell_uuid, uuids, lambda part: ListMigrationsInCell(uuids=part)):
                found[one.uuid] = one
        except errors.MoorageError as missing:
            LOG.warning("Migrations of cell %s are shown without the records of the cell: %s", cell_uuid, missing)
            fault = str(missing)
        return {one.uuid: merged(one, found.get(one.uuid), cell, fault) for one in known}


def _note_over(connection: Connection, over: Sequence[Migration]) -> None:
    for migration in over:
        super_migrations.change(
            connection,
            migration.uuid,
            state=cast(MigrationState, migration.state),  # one of OVER
            reason=migration.reason,
            source_host=migration.source_host,
            destination_host=migration.destination_host,
        )


def merged(known: SuperMigration, in_cell: Migration | None, cell: str | None, fault: str | None) -> Migration:
    """Merge the two records of a migration: the cell's has precedence, except for a final state on record here."""
    best = in_cell or known
    # A final state here has precedence: the super conductor records it before it sends the cell anything else. A
    # migration that is still being placed has ended only when its operation has recorded that, with the explanation.
    if in_cell is None or known.state in OVER or (known.state == "placing" and in_cell.state in OVER):
        state = known.state
    else:
        state = in_cell.state
    reasons = (known.reason, best.reason) if known.state in OVER else (best.reason, known.reason, fault)
    return Migration(
        uuid=known.uuid,
        instance_uuid=known.instance_uuid,
        kind=known.kind,
        state=state,
        source_host=best.source_host or known.source_host,
        destination_host=best.destination_host or known.destination_host,
        reason=next((reason for reason in reasons if reason), None),
        explanation=known.explanation,
        attempts=best.attempts,
        cell=cell,
        request_id=known.request_id,
        number=known.number,
        created_at=known.created_at,
        updated_at=max(known.updated_at, best.updated_at),
    )
