"""Delete expired rows in parts: no transaction grows without bound, and a service that stops waits for one part."""

from collections.abc import Callable

from sqlalchemy import Column, ColumnElement, Connection, select

from moorage.db.database import Database
from moorage.service.process import is_stopping

#: The most rows that one transaction deletes. Arbitrary.
AT_ONCE = 1000


def in_parts(delete_some: Callable[[], int], at_once: int = AT_ONCE) -> int:
    """Call ``delete_some`` until it finds fewer than ``at_once`` rows; not at all if the periodic task is to stop.

    A part that is not full is the last one: otherwise rows that expire meanwhile would keep the round going for ever.

    :return: the number of rows of all parts.
    """
    done = 0
    while not is_stopping():
        part = delete_some()
        done += part
        if part < at_once:
            break
    return done


def delete_expired(database: Database, key: Column[str], *expired: ColumnElement[bool]) -> int:
    """Delete the rows that meet these conditions, and return their number. Several processes may do so at once.

    :param key: the column of the table that names a row, within the conditions.
    """

    def delete_some(connection: Connection) -> int:
        # Delete by keys, which are read without a lock. To delete by time would lock the part of the index into which
        # new rows are inserted.
        found = sorted(connection.scalars(select(key).where(*expired).limit(AT_ONCE)))
        connection.execute(key.table.delete().where(key.in_(found), *expired))
        return len(found)

    return in_parts(lambda: database.write(delete_some))
