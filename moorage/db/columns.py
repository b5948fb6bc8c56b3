"""Column types, the database clock and conditions for MySQL, MariaDB and SQLite.

Migrations use the types: never change one.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Dialect, Integer, LargeBinary, Numeric, String, true
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

#: The clocks of two databases differ by less than this, in seconds, and no message arrives later. If a stored time is
#: further ahead of the clock, the clock has been set back since.
CLOCK_SET_BACK = 60.0
#: The most names in one condition: SQLite accepts at most 32,766 parameters, and parsing must be fast everywhere.
_NAMES = 1000


def name_type() -> TypeEngine[str]:
    """Return the type of a name of at most 255 characters."""
    # Names are compared byte by byte, as in SQLite: "A" and "a" are two hosts.
    return String(255).with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def uuid_type() -> TypeEngine[str]:
    """Return the type of a uuid in its canonical form."""
    # ASCII needs a quarter of the index space that utf8mb4 reserves.
    return String(36).with_variant(mysql.VARCHAR(36, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


def request_id_type() -> TypeEngine[str]:
    """Return the type of a request id, which is ASCII."""
    return String(64).with_variant(mysql.VARCHAR(64, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


def id_type() -> TypeEngine[int]:
    """Return the type of a surrogate key; SQLite generates values only for a plain INTEGER."""
    return BigInteger().with_variant(Integer(), "sqlite")


def digest_type() -> TypeEngine[bytes]:
    """Return the type of a SHA-256 digest."""
    return LargeBinary(32).with_variant(mysql.BINARY(32), "mysql", "mariadb")


def document_type() -> TypeEngine[bytes]:
    """Return the type of an encoded value of up to 16 MiB."""
    return LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb")


class now(FunctionElement[float]):  # noqa: N801  # named as SQL names it
    """The database's clock, in seconds since 1970; the same for all rows of a statement."""

    # The value is a double. Numeric keeps SQLAlchemy from deriving a new type for each sum and difference, which took
    # as long as the rest of a statement.
    type = Numeric(asdecimal=False)
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(_element: now, _compiler: Any, **_options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now)
def _now_mysql(_element: now, _compiler: Any, **_options: Any) -> str:
    # UNIX_TIMESTAMP(NOW(6)) would use the wall clock of the session's time zone, and jump at daylight saving changes.
    # The division by a double makes the result a double.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6)"


@lru_cache
def clock(dialect: Dialect) -> str:
    """Return the database's clock as the text of an SQL expression."""
    return str(now().compile(dialect=dialect))


def is_ahead(stored: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition that a time was stored before the database's clock was set back."""
    return stored > now() + CLOCK_SET_BACK


def rows_named(
    column: ColumnElement[str], wanted: Collection[str], known: Collection[str]
) -> Iterator[ColumnElement[bool]]:
    """Yield conditions that together select the rows with a wanted name, if the names of all rows are known.

    If few names are unwanted, the condition excludes them instead: a database needs longer to find ten thousand rows by
    their names than to write them.
    """
    unwanted = sorted(set(known).difference(wanted))
    if len(unwanted) <= _NAMES:
        yield column.not_in(unwanted) if unwanted else true()
        return
    found = sorted(set(known).intersection(wanted))
    for first in range(0, len(found), _NAMES):
        yield column.in_(found[first : first + _NAMES])


class as_uuid(FunctionElement[str]):  # noqa: N801  # named as an SQL function is
    """Convert a name that is a uuid to the type of uuids.

    MySQL compares a column of uuids with a column of names as names, and then does not use the index of the uuids.
    """

    type = String()
    inherit_cache = True


@compiles(as_uuid, "sqlite")
def _as_uuid_sqlite(element: as_uuid, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(as_uuid)
def _as_uuid_mysql(element: as_uuid, compiler: Any, **options: Any) -> str:
    return f"CONVERT({compiler.process(element.clauses, **options)} USING ascii) COLLATE ascii_bin"
