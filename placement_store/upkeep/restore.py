"""Begin a new history of a main schema restored from a backup, before anything else writes to it."""

from sqlalchemy import Connection

from placement_store.db import change_feed
from placement_store.schema import consumers, host_aggregates, hosts, resource_providers

#: More than the number of changes that can have been lost.
_LEAP = 2**32

_NUMBERS = (
    (resource_providers, ("generation", "seq")),
    (hosts, ("seq",)),
    (host_aggregates, ("seq",)),
    (consumers, ("generation",)),
)


def begin_history(connection: Connection) -> None:
    """Begin a new history of the store: no number of the lost one is given out again.

    The store would otherwise come to generations once more that stale writers rely on, and to a ``seq`` that a
    scheduler knows of another row. The feed tells schedulers that run to read everything anew.
    """
    for table, names in _NUMBERS:
        connection.execute(table.update().values({name: table.c[name] + _LEAP for name in names}))
    change_feed.begin_history(connection, _LEAP)
