"""Translate the names of resource classes and traits to ids and back; create and delete custom names.

An id stands for one name for ever: also after the name was deleted, and if it is created again. So the cache of a
process may be incomplete, but is never wrong. It does not prove that a name exists: a write that uses a name reads it
from the store, with a lock that prevents its deletion meanwhile (:meth:`Names.require`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import ClassVar

import os_resource_classes
import os_traits
from sqlalchemy import ColumnElement, Connection, Table, func, select

from moorage import errors
from moorage.db.database import Database
from placement_store.db import bulk
from placement_store.db.retries import StaleRead, retry_on_stale_read, stale_if_taken
from placement_store.schema import inventories, provider_traits, resource_classes, traits

#: The prefix of the names that operators and drivers may create; the same in both libraries.
CUSTOM_NAMESPACE: str = os_resource_classes.CUSTOM_NAMESPACE

#: The id of a standard class is its index in the library's list, so custom ids begin well behind the end of the list.
FIRST_CUSTOM_ID = 10_000

_STANDARD_CLASSES: Mapping[str, int] = {name: number for number, name in enumerate(os_resource_classes.STANDARDS)}

# MySQL treats an inserted 0 as "the next number", and takes it literally only in an UPDATE.
_STAND_IN_FOR_ZERO = -1


class Names:
    """Cache the names of one kind with their ids, read on first use; one object serves all threads of a process."""

    _kind: ClassVar[str]
    _table: ClassVar[Table]
    _not_found: ClassVar[type[errors.NotFound]]
    _standards: ClassVar[Collection[str]]
    #: The ids that need not be read from the store.
    _fixed_ids: ClassVar[Mapping[str, int]] = {}
    #: The column with the ids of the names that providers have.
    _in_use: ClassVar[ColumnElement[int]]

    def __init__(self, database: Database) -> None:
        self._database = database
        # Replaced and never changed in place: a reader sees either the old mapping or the new one.
        self._ids: Mapping[str, int] = self._fixed_ids
        self._names: Mapping[int, str] = {number: name for name, number in self._ids.items()}

    # --- Lookup -------------------------------------------------------------------------------------------------------

    def id_of(self, name: str, connection: Connection | None = None) -> int:
        """Return the id of a name; within a transaction, pass its ``connection``, which is used if it must be read.

        :raises NotFound: the name does not exist.
        """
        number = self._ids.get(name)
        if number is None:
            number = self._read(connection)[0].get(name)
        if number is None:
            raise self._missing(name)
        return number

    def name_of(self, number: int, connection: Connection | None = None) -> str:
        """Return the name of an id; within a transaction, pass its ``connection``, which is used if it must be read.

        :raises NotFound: no name has that id.
        """
        name = self._names.get(number)
        if name is None:
            name = self._read(connection)[1].get(number)
        if name is None:
            raise self._missing(str(number))
        return name

    @classmethod
    def require(cls, connection: Connection, names: Collection[str], *, lock: bool = False) -> dict[str, int]:
        """Verify that names exist and return their ids; with ``lock``, none is deleted before the transaction ends.

        Names with fixed ids are not read: they are never deleted.

        :raises NotFound: one of them does not exist.
        """
        found = {name: cls._fixed_ids[name] for name in names if name in cls._fixed_ids}
        others = sorted(set(names) - found.keys())
        found |= {row.name: row.id for row in _existing(cls._table, lock).rows(connection, others)}
        for name in sorted(set(names) - found.keys()):
            raise cls._missing(name)
        return found

    @classmethod
    def listed(
        cls,
        connection: Connection,
        *,
        names: Collection[str] | None = None,
        starting_with: str = "",
        associated: bool | None = None,
    ) -> list[str]:
        """Return the existing names, sorted: all, or those that match all given conditions.

        :param associated: true: only names that some provider has; false: only names that no provider has.
        """
        table = cls._table.c
        query = select(table.name).where(table.deleted.is_(False))
        if associated is not None:
            used = select(cls._in_use)
            query = query.where(table.id.in_(used) if associated else table.id.not_in(used))
        found: Iterable[str] = connection.scalars(query)
        wanted = None if names is None else set(names)
        return sorted(name for name in found if name.startswith(starting_with) and (wanted is None or name in wanted))

    # --- Creating and deleting ----------------------------------------------------------------------------------------

    def ensure(self, names: Iterable[str], unless: Callable[[Connection], bool] = lambda _connection: False) -> None:
        """Create those of these custom names that are missing, in a separate transaction.

        Call it before the transaction that needs them: that one may be rolled back, but an id that a process has cached
        must stay valid.

        :param unless: asked if some are missing; if it returns true, none is created.
        :raises NotFound: one of them is neither a standard name nor called ``CUSTOM_...``.
        """
        custom = sorted(set(names).difference(self._standards))
        for name in custom:
            if not name.startswith(CUSTOM_NAMESPACE):
                raise self._missing(name)
        if not custom:
            return
        if self._database.read(lambda connection: self._absent(connection, custom) and not unless(connection)):
            retry_on_stale_read(lambda: self._database.write(lambda connection: self.create(connection, custom)))

    @classmethod
    def create(cls, connection: Connection, custom: Collection[str]) -> set[str]:
        """Create those of these custom names that are missing, and return them.

        :raises StaleRead: a concurrent transaction is creating one of them; a new transaction may find it.
        """
        table = cls._table
        # One statement for both: between two, another transaction may create a name, which would then count as deleted.
        query = select(table.c.name, table.c.deleted)
        known = {row.name: row.deleted for row in bulk.select_in(connection, query, table.c.name, sorted(custom))}
        missing = {name for name in custom if known.get(name, True)}
        if deleted := missing & known.keys():
            these = (table.c.name.in_(deleted), table.c.deleted.is_(True))
            if connection.execute(table.update().where(*these).values(deleted=False)).rowcount != len(deleted):
                raise StaleRead
        cls._insert_new(connection, sorted(missing - deleted))
        return missing

    @classmethod
    def delete(cls, connection: Connection, name: str) -> None:
        """Delete a custom name that no provider has; its id stays reserved for it.

        :raises NotFound: the name does not exist.
        :raises NameInUse: a provider has it.
        """
        # Its row is locked first: a write that gives it to a provider takes that lock too (`require`), so either this
        # transaction sees that the provider has it, or that write finds it deleted.
        table = cls._table
        this = (table.c.name == name, table.c.deleted.is_(False))
        if connection.execute(table.update().where(*this).values(deleted=True)).rowcount != 1:
            raise cls._missing(name)
        number = select(table.c.id).where(table.c.name == name).scalar_subquery()
        if connection.execute(select(cls._in_use).where(cls._in_use == number).limit(1)).first():
            raise errors.NameInUse(kind=cls._kind, name=name)

    def forget(self) -> None:
        """Drop the cached ids, after a name was deleted."""
        self._ids = self._fixed_ids

    def forget_numbers(self) -> None:
        """Drop the whole cache, also the names of ids, after the store was restored."""
        self._ids = self._fixed_ids
        self._names = {number: name for name, number in self._ids.items()}

    @classmethod
    def require_custom(cls, name: str) -> None:
        """Refuse to create or delete a name that is not custom.

        :raises InvalidRequest: it is a standard name, or is not called ``CUSTOM_...``.
        """
        if name in cls._standards:
            raise errors.InvalidRequest(path="$.name", reason=f"{name} is a standard {cls._kind}")
        if not name.startswith(CUSTOM_NAMESPACE):
            raise errors.InvalidRequest(path="$.name", reason=f"the name of a custom {cls._kind} begins with CUSTOM_")

    def sync(self) -> None:
        """Write the missing standard names into the store; any number of processes may do so concurrently."""
        retry_on_stale_read(lambda: self._database.write(self._write_standards))

    # --- Parts --------------------------------------------------------------------------------------------------------

    @classmethod
    def _missing(cls, name: str) -> errors.NotFound:
        return cls._not_found(kind=cls._kind, name=name)

    def _read(self, connection: Connection | None) -> tuple[Mapping[str, int], Mapping[int, str]]:
        """Read all names into the cache, and return the ids by name and the names by id."""
        rows = self._database.read(self._all) if connection is None else self._all(connection)
        ids = {**self._fixed_ids, **{name: number for number, name, deleted in rows if not deleted}}
        names = {**self._names, **{number: name for number, name, _ in rows}}
        self._ids, self._names = ids, names
        return ids, names

    @classmethod
    def _all(cls, connection: Connection) -> list[tuple[int, str, bool]]:
        table = cls._table.c
        rows = connection.execute(select(table.id, table.name, table.deleted))
        return [(row.id, row.name, row.deleted) for row in rows]

    @classmethod
    def _absent(cls, connection: Connection, names: Collection[str]) -> set[str]:
        return set(names) - {row.name for row in _existing(cls._table, lock=False).rows(connection, sorted(names))}

    def _write_standards(self, connection: Connection) -> None:
        known = {name for _, name, _ in self._all(connection)}
        self._insert_new(connection, sorted(set(self._standards) - known))

    @classmethod
    def _insert_new(cls, connection: Connection, names: Collection[str]) -> None:
        """Insert rows for names that have none yet; here the database assigns the ids."""
        cls._insert(connection, [{"name": name} for name in names])

    @classmethod
    def _insert(cls, connection: Connection, rows: Collection[Mapping[str, object]]) -> None:
        if not rows:
            return
        with stale_if_taken():
            connection.execute(cls._table.insert(), [dict(row) for row in rows])


@lru_cache
def _existing(table: Table, lock: bool) -> bulk.Lookup:
    # SELECT name, id FROM traits WHERE NOT deleted AND name IN (...) LOCK IN SHARE MODE
    query = select(table.c.name, table.c.id).where(table.c.deleted.is_(False))
    return bulk.Lookup(query.with_for_update(read=True) if lock else query, table.c.name)


class TraitNames(Names):
    """Translate traits; the standard ones are those of `os-traits`."""

    _kind = "trait"
    _table = traits
    _not_found = errors.TraitNotFound
    _standards = frozenset[str](os_traits.get_traits())
    _in_use = provider_traits.c.trait_id


class ResourceClassNames(Names):
    """Translate resource classes; the standard ones are those of `os-resource-classes`, with their index as id."""

    _kind = "resource class"
    _table = resource_classes
    _not_found = errors.ResourceClassNotFound
    _fixed_ids = _STANDARD_CLASSES
    _standards = _STANDARD_CLASSES
    _in_use = inventories.c.resource_class_id

    @classmethod
    def _insert_new(cls, connection: Connection, names: Collection[str]) -> None:
        highest = connection.scalar(select(func.max(resource_classes.c.id))) or 0
        next_custom = max(highest + 1, FIRST_CUSTOM_ID)
        custom = [name for name in names if name not in cls._standards]
        numbers = {**cls._fixed_ids, **{name: next_custom + offset for offset, name in enumerate(custom)}}
        cls._insert(connection, [{"id": numbers[name] or _STAND_IN_FOR_ZERO, "name": name} for name in names])
        stand_in = resource_classes.c.id == _STAND_IN_FOR_ZERO
        connection.execute(resource_classes.update().where(stand_in).values(id=0))


def sync(database: Database) -> None:
    """Write the missing standard names of both kinds into the store; every service of the store starts with this.

    :raises StoreUnavailable: the database cannot be reached.
    """
    ResourceClassNames(database).sync()
    TraitNames(database).sync()
