"""Read the database of a Placement service, and refuse content that a store could not hold unchanged."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import os_resource_classes
from oslo_config import cfg
from sqlalchemy import (
    URL,
    Column,
    Connection,
    MetaData,
    NullPool,
    Table,
    create_engine,
    exc,
    inspect,
    make_url,
    select,
)

from moorage import errors
from moorage.messages.wire import decode
from moorage.model import Inventory
from moorage.model.basis import (
    Amount,
    ConsumerType,
    Generation,
    Name,
    NewProviderName,
    ResourceClassName,
    TraitName,
    Uuid,
)
from placement_store.importing.content import Content, ImportedConsumer, ImportedProvider, Times
from placement_store.providers.inventories import fault_of

#: The most faults of a source that are shown.
_SHOWN = 10
#: An unknown time, as MySQL and MariaDB outside their strict modes store a missing or wrong one.
_NO_TIME = "0000-00-00 00:00:00"


_METADATA = MetaData()


def _table(name: str, columns: str) -> Table:
    return Table(name, _METADATA, *(Column(column) for column in columns.split()))


# Placement's tables since its release 6.0 (Xena), with the columns that are read.
_CLASSES = _table("resource_classes", "id name")
_TRAITS = _table("traits", "id name")
_PROVIDERS = _table(
    "resource_providers", "id uuid name generation root_provider_id parent_provider_id created_at updated_at"
)
_INVENTORIES = _table("inventories", f"resource_provider_id resource_class_id {' '.join(Inventory.__struct_fields__)}")
_PROVIDER_TRAITS = _table("resource_provider_traits", "resource_provider_id trait_id")
_AGGREGATES = _table("placement_aggregates", "id uuid")
_PROVIDER_AGGREGATES = _table("resource_provider_aggregates", "resource_provider_id aggregate_id")
_PROJECTS = _table("projects", "id external_id")
_USERS = _table("users", "id external_id")
_TYPES = _table("consumer_types", "id name")
_CONSUMERS = _table("consumers", "uuid project_id user_id generation consumer_type_id created_at updated_at")
_ALLOCATIONS = _table("allocations", "consumer_id resource_provider_id resource_class_id used")


def url_of(named: str) -> URL:
    """Return the URL of a source that is named by its URL or by a configuration file of Placement.

    :raises ConfigurationError: the name is neither.
    """
    text = named
    if "://" not in named:
        conf = cfg.ConfigOpts()
        conf.register_opt(cfg.StrOpt("connection"), group="placement_database")
        try:
            conf([], project="placement", default_config_files=[named], default_config_dirs=[])
        except (cfg.ConfigFilesNotFoundError, cfg.ConfigFileParseError, cfg.ConfigFilesPermissionDeniedError) as fault:
            # A text with an "@" may be a mistyped URL with a password.
            reason = "it is neither a URL nor a file that can be read" if "@" in named else str(fault)
            raise errors.ConfigurationError(reason=f"the source: {reason}") from fault
        except (OSError, UnicodeDecodeError) as fault:
            what = (
                "is not text in UTF-8" if isinstance(fault, UnicodeDecodeError) else f"cannot be read: {fault.strerror}"
            )
            raise errors.ConfigurationError(reason=f"the source {named or repr(named)} {what}") from fault
        try:
            text = conf.placement_database.connection
        except cfg.NoSuchOptError as fault:
            # The name is not shown: it may be a part of the password.
            reason = "its connection has a $ that does not begin the name of an option: a $ itself is written $$"
            raise errors.ConfigurationError(reason=f"the source {named}: {reason}") from fault
    try:
        url = make_url(text or "")
    except (exc.ArgumentError, ValueError) as fault:
        # The error does not show the URL, which may contain a password.
        what = "is no URL of a database" if "://" in named else f"{named} has no [placement_database] connection"
        raise errors.ConfigurationError(reason=f"the source {what}") from fault
    if _is_sqlite(url) and not Path(url.database or "").is_file():
        raise errors.ConfigurationError(reason=f"the source: there is no file {url.database}")
    return url


def read(url: URL) -> Content:
    """Read all content of the database of a Placement service in one snapshot.

    :raises ConfigurationError: it cannot be read; or it is not a database of Placement; or its release is too old; or
        it has content that a store cannot hold. The error names the reason.
    """
    with closing(_connected(url)) as connection:
        try:
            if _is_sqlite(url):
                connection.exec_driver_sql("BEGIN")  # by itself, the driver begins a transaction only for a write
            return _Reading(connection).content()
        except exc.SQLAlchemyError as fault:
            raise _unreadable(fault) from fault


def _connected(url: URL) -> Connection:
    """Connect to a source.

    :raises ConfigurationError: with the reason of the driver.
    """
    try:
        # A separate engine: the settings of Moorage's databases are for databases that Moorage writes.
        level = None if _is_sqlite(url) else "REPEATABLE READ"
        return create_engine(url, isolation_level=level, poolclass=NullPool).connect()
    except Exception as fault:
        # Any exception: for a parameter that it does not take, or a file that is missing, a driver raises its own.
        raise _unreadable(fault) from fault


def _unreadable(fault: Exception) -> errors.ConfigurationError:
    return errors.ConfigurationError(reason=f"the source cannot be read: {getattr(fault, 'orig', None) or fault}")


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


class _Reading:
    """Read one source, and collect the faults found so far.

    :raises ConfigurationError: it lacks a table.
    """

    def __init__(self, connection: Connection) -> None:
        if missing := _METADATA.tables.keys() - set(inspect(connection).get_table_names()):
            reason = f"it has no table {min(missing)}: is it the database of Placement 6.0 (Xena) or later?"
            raise errors.ConfigurationError(reason=f"the source: {reason}")
        self._connection = connection
        self._faults: list[str] = []
        self._times: dict[str, Times] = {}
        # The names and uuids by their ids in the source.
        self._classes = self._by_id(_CLASSES, "name", ResourceClassName)
        self._traits = self._by_id(_TRAITS, "name", TraitName)
        self._aggregates = self._by_id(_AGGREGATES, "uuid", Uuid)
        self._uuids = self._by_id(_PROVIDERS, "uuid", Uuid)

    def content(self) -> Content:
        """Return the whole content.

        :raises ConfigurationError: some of it is not as Placement writes it.
        """
        providers = self._providers()
        inventories = self._inventories()
        provider_traits = self._links(_PROVIDER_TRAITS, "trait_id", self._traits)
        allocations = self._allocations(inventories)
        consumers = self._consumers({consumer for consumer, _, _ in allocations})
        read = Content(
            resource_classes=dict.fromkeys(self._kept(self._classes, {name for _, name in inventories})),
            traits=dict.fromkeys(self._kept(self._traits, {name for _, name in provider_traits})),
            providers=providers,
            inventories=inventories,
            provider_traits=provider_traits,
            provider_aggregates=self._links(_PROVIDER_AGGREGATES, "aggregate_id", self._aggregates),
            consumers=consumers,
            allocations=allocations,
            times=self._times,
        )
        for name in sorted(read.resource_classes):
            if not os_resource_classes.is_custom(name) and name not in os_resource_classes.STANDARDS:
                self._fault(f"resource class {name} is not known here: install a newer os-resource-classes")
        if self._faults:
            shown = "; ".join(self._faults[:_SHOWN])
            more = f"; and {len(self._faults) - _SHOWN} more" if len(self._faults) > _SHOWN else ""
            raise errors.ConfigurationError(reason=f"the source cannot be imported: {shown}{more}")
        return read

    # --- Parts --------------------------------------------------------------------------------------------------------

    def _providers(self) -> dict[str, ImportedProvider]:
        found: dict[str, ImportedProvider] = {}
        for row in self._rows(_PROVIDERS):
            where = f"resource provider {row.uuid}"
            root, parent = self._uuids.get(row.root_provider_id), self._uuids.get(row.parent_provider_id)
            if root is None:
                self._fault(f"{where} has no root: run `placement-manage db online_data_migrations`")
            elif row.parent_provider_id is not None and parent is None:
                self._fault(f"{where} has a parent that does not exist")
            else:
                name = self._checked(NewProviderName, row.name, f"the name of {where}")
                found[row.uuid] = ImportedProvider(name, self._generation(row, where), parent, root)
                self._read_times(row, where)
        self._check_trees(found)
        self._check_unique(Counter(one.name for one in found.values()), "resource providers named")
        return found

    def _check_trees(self, providers: Mapping[str, ImportedProvider]) -> None:
        for uuid, provider in providers.items():
            above, steps = uuid, 0
            while (one := providers.get(above)) is not None and one.parent is not None and steps <= len(providers):
                above, steps = one.parent, steps + 1
            # A walk that ends at a provider with a parent goes in a circle.
            if above != provider.root or (one is not None and one.parent is not None):
                self._fault(f"resource provider {uuid} is not in the tree of its root {provider.root}")

    def _inventories(self) -> dict[tuple[str, str], Inventory]:
        found = {}
        for row in self._rows(_INVENTORIES):
            if key := self._pair(row, "resource_class_id", self._classes, "an inventory"):
                amounts = {name: getattr(row, name) for name in Inventory.__struct_fields__}
                what = f"the inventory of {key[1]} of resource provider {key[0]}"
                found[key] = inventory = self._checked(Inventory, amounts, what)
                if isinstance(inventory, Inventory) and (reason := fault_of(inventory)) is not None:
                    self._fault(f"{what} is invalid: {reason}")
        return found

    def _links(self, of: Table, to: str, names: Mapping[int, str]) -> dict[tuple[str, str], None]:
        pairs = (self._pair(row, to, names, f"a row of {of.name}") for row in self._rows(of))
        return dict.fromkeys(pair for pair in pairs if pair is not None)

    def _allocations(self, inventories: Mapping[tuple[str, str], Inventory]) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], int] = {}
        for row in self._rows(_ALLOCATIONS):
            where = f"an allocation of consumer {row.consumer_id}"
            if (pair := self._pair(row, "resource_class_id", self._classes, where)) is None:
                continue
            key = (row.consumer_id, *pair)
            if pair not in inventories:
                self._fault(f"{where} takes {pair[1]} of resource provider {pair[0]}, which has none")
            if key in found:
                self._fault(f"consumer {row.consumer_id} has two allocations of {pair[1]} of {pair[0]}")
            found[key] = self._checked(Amount, row.used, f"the amount of {where}")
        return found

    def _consumers(self, holding: set[str]) -> dict[str, ImportedConsumer]:
        """Read the consumers with allocations: Placement deletes the others, but sometimes late."""
        projects, users, types = (
            # Consumers over RPC and HTTP may have such ids as well: nothing in the store is unique by them.
            self._by_id(_PROJECTS, "external_id", Name),
            self._by_id(_USERS, "external_id", Name),
            self._by_id(_TYPES, "name", ConsumerType),
        )
        found: dict[str, ImportedConsumer] = {}
        for row in self._rows(_CONSUMERS):
            if row.uuid not in holding:
                continue
            self._checked(Uuid, row.uuid, "the uuid of a consumer")
            where = f"consumer {row.uuid}"
            project, user = projects.get(row.project_id), users.get(row.user_id)
            kind = types.get(row.consumer_type_id)
            if kind is None and row.consumer_type_id is not None:
                self._fault(f"{where} has a consumer type that does not exist")
            if project is None or user is None:
                self._fault(f"{where} has a project or a user that does not exist")
                continue
            found[row.uuid] = ImportedConsumer(kind, project, user, self._generation(row, where))
            self._read_times(row, where)
        for uuid in sorted(holding - found.keys()):
            self._fault(f"consumer {uuid} has no row: run `placement-manage db online_data_migrations`")
        return found

    # --- Rows and values ----------------------------------------------------------------------------------------------

    def _rows(self, of: Table) -> Iterable[Any]:
        return self._connection.execute(select(*of.c))

    def _by_id(self, of: Table, name: str, kind: Any) -> dict[int, str]:
        what = f"{name} of {of.name}"
        rows = [(row.id, self._checked(kind, getattr(row, name), what)) for row in self._rows(of)]
        self._check_unique(Counter(value for _, value in rows), f"rows of {of.name} with the {name}")
        return dict(rows)

    def _pair(self, row: Any, to: str, names: Mapping[int, str], what: str) -> tuple[str, str] | None:
        """Return the provider uuid and the linked name of an association row; null if one does not exist."""
        provider, name = self._uuids.get(row.resource_provider_id), names.get(getattr(row, to))
        if provider is None or name is None:
            number = row.resource_provider_id if provider is None else getattr(row, to)
            self._fault(f"{what} has a {'resource_provider_id' if provider is None else to} {number} without a row")
            return None
        return provider, name

    def _checked(self, kind: Any, value: Any, what: str) -> Any:
        try:
            return decode(kind, value)
        except errors.InvalidRequest as fault:
            self._fault(f"{what} is {value!r}: {fault.reason} ({fault.path})")
            return value

    def _generation(self, row: Any, where: str) -> int:
        generation: int = self._checked(Generation, row.generation or 0, f"the generation of {where}")
        return generation

    def _read_times(self, row: Any, where: str) -> None:
        """Read the times of a row; ``updated_at`` is null until the first update."""
        created = self._seconds(row.created_at, where)
        self._times[row.uuid] = Times(created, self._seconds(row.updated_at, where) or created)

    def _seconds(self, moment: datetime | str | None, where: str) -> float:
        """Return a time, which Placement writes in UTC, in seconds since 1970; an unknown one is 0.

        SQLite returns texts, and PyMySQL does so for what is no time.
        """
        if moment is None or str(moment).startswith(_NO_TIME):
            return 0.0
        try:
            return datetime.fromisoformat(str(moment)).replace(tzinfo=UTC).timestamp()
        except ValueError:
            self._fault(f"{where} has the time {moment!r}, which does not exist")
            return 0.0

    def _check_unique(self, counted: Mapping[str, int], what: str) -> None:
        for value, number in counted.items():
            if number > 1:
                self._fault(f"there are {number} {what} {value}")

    def _fault(self, text: str) -> None:
        self._faults.append(text)

    @staticmethod
    def _kept(names: Mapping[int, str], in_use: set[str]) -> set[str]:
        """Return the names to import: the custom ones, and those in use."""
        return {name for name in names.values() if os_resource_classes.is_custom(name)} | in_use
