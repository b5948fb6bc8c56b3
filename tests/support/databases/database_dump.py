"""All records in the three databases of a cloud, to check that none of them has changed."""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select

from conductor.schema import CELL_METADATA, CONDUCTOR_METADATA
from moorage.db.database import Database
from placement_store.schema import METADATA

#: Rows by table.
Dump = Mapping[str, frozenset[str]]

#: Requests are stored whatever their outcome; services report periodically; the feed is pruned.
_LEFT_OUT = ("requests", "services", "changes")
#: Columns that change without a message: signs of life, work on hosts, repeated tries, and the outcome of former
#: migrations, for which their cells are asked after a while. Also the numbers of orders, which are never used again.
_MOVING = {
    "hosts": ("heartbeat_at", "updated_at", "seq", "io_ops", "failed_builds", "image_properties", "load_at"),
    "cells": ("alive_at",),
    "cell_hosts": ("last_seen", "withheld_at"),
    "cell_agents": ("described", "alive", "providers"),
    # The numbers of orders that were refused.
    "conductor_instances": ("order_number",),
    "cell_instances": ("refused_order_number",),
    "conductor_migrations": ("state", "source_host", "destination_host", "reason", "updated_at"),
    "conductor_operations": ("tries", "reason", "due_at", "lease_owner", "lease_until", "lease_number", "updated_at"),
}
_MOVING["cell_operations"] = _MOVING["conductor_operations"]


def dump(database: Database, but: Collection[str] = ()) -> Dump:
    """Return all rows, of one moment.

    :param but: columns to leave out in every table.
    """
    return database.read_one_moment(lambda connection: _dump(connection, but))


def _dump(connection: Connection, but: Collection[str]) -> Dump:
    found: dict[str, frozenset[str]] = {}
    for metadata in (METADATA, CONDUCTOR_METADATA, CELL_METADATA):
        for table in metadata.sorted_tables:
            if table.name.endswith(_LEFT_OUT):
                continue
            columns = [one for one in table.c if one.name not in (*_MOVING.get(table.name, ()), *but)]
            rows = connection.execute(select(*columns)).mappings()
            found[table.name] = frozenset(str(dict(row)) for row in rows)
    return found


def differences(before: Dump, after: Dump) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by table, the rows that have gone and the rows that have come."""
    return {
        name: (sorted(before[name] - after[name]), sorted(after[name] - before[name]))
        for name in before
        if before[name] != after[name]
    }
