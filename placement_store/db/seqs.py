"""Which rows of a table stand at which ``seq``.

What a row is described with changes only together with its ``seq``. So whoever keeps rows in memory need not read them
to know that they are as they were.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, Table, select


def pairs(connection: Connection, table: Table) -> dict[int, int]:
    """Return the ``seq`` of every row by id, as one statement sees them."""
    return dict(connection.execute(select(table.c.id, table.c.seq)).all())


def differing(connection: Connection, table: Table, known: Mapping[int, int]) -> set[int]:
    """Return the ids whose ``seq`` is another in the store than is known, or that only one of the two has."""
    return {id_ for id_, _ in known.items() ^ pairs(connection, table).items()}
