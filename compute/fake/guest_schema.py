"""The tables of the fake driver's file of guests, and the upgrade of an older file."""

import sqlite3

_TABLES = """
CREATE TABLE IF NOT EXISTS guests (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    instance_uuid TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    running INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, attempt_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS amounts (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    resource_class TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (host, attempt_id, resource_class)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS destroyed (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    PRIMARY KEY (host, attempt_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    order_id TEXT NOT NULL,
    action TEXT NOT NULL,
    number INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, attempt_id, order_id)
) WITHOUT ROWID;
"""

# `running` means that the spawn of the guest has completed. The column keeps this name, and stays set while a guest is
# stopped: an agent of an older version would otherwise take the guest as never completed, and destroy it.
_LATER = {
    "stopped": "ALTER TABLE guests ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0",
    "rebuilt_as": "ALTER TABLE guests ADD COLUMN rebuilt_as TEXT",
    "greatest_order": "ALTER TABLE guests ADD COLUMN greatest_order INTEGER NOT NULL DEFAULT 0",
}


def upgrade(connection: sqlite3.Connection) -> None:
    """Create missing tables and columns; existing data stays.

    :raises sqlite3.Error: the file cannot be written, or is not such a file.
    """
    connection.executescript(_TABLES)
    if not _missing(connection):
        return
    # Checked again under the lock: another process may be opening the same file.
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _missing(connection):
            connection.execute(statement)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _missing(connection: sqlite3.Connection) -> list[str]:
    columns = {row[1] for row in connection.execute("PRAGMA table_info(guests)")}
    return [statement for column, statement in _LATER.items() if column not in columns]
