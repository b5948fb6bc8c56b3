"""New databases with the tables of some schemas: the migrations run once per process, and not for each test."""

import tempfile
from pathlib import Path

from sqlalchemy import Connection

from harness.servers import MariaDBServer
from moorage.db.database import Database
from moorage.db.schemas import Schema

#: The content of SQLite files with the tables of these schemas.
_FILES: dict[tuple[str, ...], bytes] = {}


def sqlite(path: Path, *schemas: Schema) -> str:
    """Create a file with the tables of these schemas; return its URL."""
    names = tuple(schema.name for schema in schemas)
    if names not in _FILES:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "template.sqlite")
            _migrate(f"sqlite:///{file}", schemas)  # closing the last connection moves the write-ahead log into it
            _FILES[names] = file.read_bytes()
    path.write_bytes(_FILES[names])
    return f"sqlite:///{path}"


def give_tables(url: str, *schemas: Schema) -> None:
    """Create the tables of these schemas in a database: SQLite gets a copy of a file, any other runs the migrations."""
    path = Path(url.removeprefix("sqlite:///"))
    if url.startswith("sqlite:///") and not path.exists():
        sqlite(path, *schemas)
    else:
        _migrate(url, schemas)


class OnMariaDB:
    """Databases of one server, one for each set of schemas, which are emptied before they are used again."""

    def __init__(self, server: MariaDBServer) -> None:
        self._server = server

    def url(self, *schemas: Schema) -> str:
        """Return the URL of a database with the empty tables of these schemas."""
        name = "_".join(["migrated", *(schema.name for schema in schemas)])
        if not self._emptied(name, schemas):
            _migrate(self._server.create_database(name), schemas)
        return self._server.url(name)

    def _emptied(self, name: str, schemas: tuple[Schema, ...]) -> bool:
        """Empty a database, if it exists with these tables; return whether it was emptied."""
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
        there = {table for (table,) in self._server.execute(query, name)}
        tables = {table for schema in schemas for table in schema.metadata.tables}
        if there != tables.union(*(schema.bookkeeping_tables for schema in schemas)):
            return False
        self._server.end_connections(name)
        # A connection that was just ended may still hold locks for a moment.
        database = Database(self._server.url(name), "test", pool_size=1, lock_wait=60.0)
        with database.engine.connect() as connection:
            # Automatic ids continue: resetting them would alter each table, which takes a fifth of a second in all.
            _delete(connection, tables)
        database.close()
        return True


def _delete(connection: Connection, tables: set[str]) -> None:
    with connection.begin():
        connection.exec_driver_sql("SET foreign_key_checks = 0")
        for table in tables:
            connection.exec_driver_sql(f"DELETE FROM `{table}`")


def _migrate(url: str, schemas: tuple[Schema, ...]) -> None:
    database = Database(url, "test")
    for schema in schemas:
        schema.upgrade(database)
    database.close()
