"""Resource classes by name and by number: the same numbers in every process, kept in memory once they are known."""

from collections.abc import Collection, Iterable, Mapping

import os_resource_classes
from sqlalchemy import Connection, exc, func, select

from moorage import errors
from moorage.database import Database
from placement_store.races import Moved, until_settled
from placement_store.schema import resource_classes

#: A standard class has its place in the library's list as its number, so custom ones must begin well behind its end.
FIRST_CUSTOM_ID = 10_000

# MySQL takes an explicit 0 for "the next number", and takes it literally only in an UPDATE.
_STAND_IN_FOR_ZERO = -1


class ResourceClassNames:
    """Resource classes by name and number, read when first asked for; one object serves all threads of a process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Never changed in place: a reader sees either the old one or the new one.
        self._ids: Mapping[str, int] = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}
        self._names: Mapping[int, str] = {number: name for name, number in self._ids.items()}

    def id_of(self, name: str, connection: Connection | None = None) -> int:
        """Return the number of a class; within a transaction its ``connection`` is used where it must be looked up.

        :raises ResourceClassNotFound: there is none of that name.
        """
        if name not in self._ids:
            self._read(connection)
        try:
            return self._ids[name]
        except KeyError:
            raise errors.ResourceClassNotFound(kind="resource class", name=name) from None

    def name_of(self, number: int, connection: Connection | None = None) -> str:
        """Return the name of a class; within a transaction its ``connection`` is used where it must be looked up.

        :raises ResourceClassNotFound: there is none of that number.
        """
        if number not in self._names:
            self._read(connection)
        try:
            return self._names[number]
        except KeyError:
            raise errors.ResourceClassNotFound(kind="resource class", name=str(number)) from None

    def ensure(self, names: Iterable[str]) -> None:
        """Create those custom classes that are missing, in a transaction of their own.

        Call it before the transaction that needs them: what that one does may be undone, and a number that somebody has
        kept in memory may not.

        :raises ResourceClassNotFound: one of them is neither a standard class nor named ``CUSTOM_...``.
        """
        if set(names) <= self._ids.keys():
            return
        self._read(None)
        missing = sorted(set(names) - self._ids.keys())
        for name in missing:
            if not name.startswith(os_resource_classes.CUSTOM_NAMESPACE):
                raise errors.ResourceClassNotFound(kind="resource class", name=name)
        if missing:
            until_settled(lambda: self._database.write(lambda connection: _create(connection, missing)))
            self._read(None)

    def sync(self) -> None:
        """Write the standard classes into the store, for those who read it by SQL; any number may do so at once."""
        until_settled(lambda: self._database.write(_write_standards))

    def _read(self, connection: Connection | None) -> None:
        rows = self._database.read(_all) if connection is None else _all(connection)
        self._ids = {**self._ids, **{name: number for number, name in rows}}
        self._names = {number: name for name, number in self._ids.items()}


def _all(connection: Connection) -> list[tuple[int, str]]:
    rows = connection.execute(select(resource_classes.c.id, resource_classes.c.name))
    return [(row.id, row.name) for row in rows]


def _create(connection: Connection, names: Collection[str]) -> None:
    known = {name for _, name in _all(connection)}
    highest = connection.scalar(select(func.max(resource_classes.c.id))) or 0
    number = max(highest + 1, FIRST_CUSTOM_ID)
    _insert(connection, {number + offset: name for offset, name in enumerate(sorted(set(names) - known))})


def _write_standards(connection: Connection) -> None:
    known = {name for _, name in _all(connection)}
    missing = {
        number or _STAND_IN_FOR_ZERO: name
        for number, name in enumerate(os_resource_classes.STANDARDS)
        if name not in known
    }
    _insert(connection, missing)
    if _STAND_IN_FOR_ZERO in missing:
        stand_in = resource_classes.c.id == _STAND_IN_FOR_ZERO
        connection.execute(resource_classes.update().where(stand_in).values(id=0))


def _insert(connection: Connection, classes: Mapping[int, str]) -> None:
    if not classes:
        return
    try:
        connection.execute(
            resource_classes.insert(), [{"id": number, "name": name} for number, name in classes.items()]
        )
    except exc.IntegrityError as fault:
        raise Moved from fault
