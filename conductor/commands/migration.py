"""The operator's commands to list and show migrations."""

import argparse
from typing import Any

from cliff.show import ShowOne

from conductor.commands.timeline import explained, timeline
from moorage import errors
from moorage.cli import lists
from moorage.cli.arguments import argument, canonical_uuid
from moorage.cli.command import Configured, ListCommand, Record, Table, shown
from moorage.messages import ListClaims, ListMigrations, ShowMigration
from moorage.model import Migration

MIGRATION_COLUMNS = ("uuid", "instance", "kind", "state", "source", "destination", "reason")


class MigrationList(ListCommand):
    """List the migrations that are in progress or wait to be confirmed or reverted, the oldest first."""

    arguments = (
        argument("--instance", metavar="INSTANCE", help="List only migrations of this instance (name or uuid)"),
        argument("--all", action="store_true", help="List migrations that are over, too"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Query the super conductor."""
        named = parsed_args.instance
        wanted = None if named is None else lists.instance_uuid(self.client("conductor"), named)
        conductor = self.client("conductor")
        after, most = self.part(parsed_args, lambda uuid: conductor.call(ShowMigration(uuid=uuid)).number)
        message = ListMigrations(instance_uuid=wanted, ended=parsed_args.all, after=after)
        found = lists.migrations(conductor, message, most=most)
        return MIGRATION_COLUMNS, [migration_row(one) for one in found]


class MigrationShow(Configured, ShowOne):
    """Show a migration: its progress, what it waits for, its attempts and its allocations."""

    only_reads = True
    arguments = (argument("uuid", type=canonical_uuid, help="Migration (uuid)"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Query the super conductor."""
        migration = self.client("conductor").call(ShowMigration(uuid=parsed_args.uuid))
        fields: dict[str, Any] = {
            "uuid": migration.uuid,
            "instance": migration.instance_uuid,
            "kind": migration.kind,
            "state": migration.state,
            "reason": migration.reason,
            "cell": migration.cell,
            "source": migration.source_host,
            "destination": migration.destination_host,
            "request_id": migration.request_id,
        }
        fields |= timeline(migration) | {"holds": self._held(migration)}
        if migration.explanation is not None:
            fields |= explained(migration.explanation, f"--request-id {migration.request_id}")
        return tuple(fields), shown(fields.values())

    def _held(self, migration: Migration) -> str:
        """Return the node on which the migration has allocations, or that it is unknown."""
        try:
            claims = self.client("placement").call(ListClaims(consumer_uuids=(migration.uuid,), residues=True))
        except errors.Unavailable as fault:
            return f"unknown: {fault}"
        return ", ".join(str(claim.node) for claim in claims) or "nothing"


def migration_row(migration: Migration) -> tuple[Any, ...]:
    """Return the row of a migration in a list."""
    where = (migration.source_host, migration.destination_host)
    return shown((migration.uuid, migration.instance_uuid, migration.kind, migration.state, *where, migration.reason))
