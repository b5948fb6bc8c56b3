"""The schemas and their migrations: one Alembic branch for each; several schemas may share a database."""

import functools
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import tenacity
from oslo_config import cfg
from sqlalchemy import Column, Connection, MetaData, Table, inspect, text
from stevedore import ExtensionManager

from moorage import errors
from moorage.addresses import mask_url
from moorage.db import faults
from moorage.db.columns import name_type
from moorage.db.database import Database
from moorage.db.engine import WRITING

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

LOG = logging.getLogger(__name__)

#: Seconds between two tries to change a table that is in use. During a try, all other users of the table wait as well,
#: for at most `lock_wait` seconds; between tries they can work. Arbitrary.
_PAUSE = 3.0

#: Seconds that one try waits for another upgrade: long enough for the server to detect a lost connection of the other.
_LOCK_WAIT = 2
#: All databases of a server share its named locks, and a name has at most 64 characters.
_LOCK = text("SELECT GET_LOCK(CONCAT('moorage upgrade ', MD5(CONCAT_WS('/', DATABASE(), :schema))), :seconds)")

# Alembic is imported only where it is used: every module with a table imports this module, and a command that only
# calls a service would wait longer for the import than for the answer.


def compatibility_table(schema: str) -> Table:
    """Return the table with one row that names the oldest code that works on a schema.

    ``oldest_code`` is the newest revision that this code contains. A release that does not contain the schema's current
    revision reads here whether it works on the schema nevertheless.
    """
    return Table(f"schema_compatibility_{schema}", MetaData(), Column("oldest_code", name_type(), primary_key=True))


@dataclass(frozen=True)
class Schema:
    """A set of tables that are migrated together.

    ``versions`` is the package of its migrations. ``former_columns`` are those that only earlier revisions have, by
    table. Each method with a database parameter raises ``StoreUnavailable`` if the database cannot be reached.
    """

    name: str
    metadata: MetaData
    versions: str
    former_columns: Mapping[str, Collection[str]] = field(default_factory=dict)

    @property
    def version_table(self) -> str:
        """The table in which Alembic keeps the revision of this schema."""
        return f"alembic_version_{self.name}"

    @property
    def bookkeeping_tables(self) -> frozenset[str]:
        """The tables that describe this schema itself: its revision, and the oldest code that works on it."""
        return frozenset({self.version_table, compatibility_table(self.name).name})

    def upgrade(self, database: Database, patience: float = 600.0) -> tuple[str | None, str | None]:
        """Migrate the tables to the newest revision; return the revisions before and after.

        Tables of a newer revision are not changed. If several upgrades run at once, one proceeds and the others wait
        until it has ended. A statement that changes a table waits for the table's users, and all later statements wait
        behind it. So its wait is short, and it is tried again after a pause.

        :param patience: seconds to wait for another upgrade, and for each statement whose table is in use, counted from
            its first failed try: the statements before it may have taken long, for instance to build an index.
        :raises SchemaInUse: a table was in use for longer; a repeated upgrade continues where this one has ended.
        :raises UpgradeUnderWay: another upgrade took longer.
        :raises SchemaTooNew: this version does not work on the tables' newer revision.
        """
        before, after = self.planned(database)
        if before == after:
            return before, after
        # The time of the first failed try of each statement.
        blocked_since: dict[str, float] = {}

        def is_over(state: tenacity.RetryCallState) -> bool:
            now = time.monotonic()
            return now - blocked_since.setdefault(_statement(_fault(state)), now) >= patience

        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(errors.UpgradeUnderWay)
            | tenacity.retry_if_exception(faults.is_collision),
            stop=is_over,
            wait=tenacity.wait_fixed(_PAUSE),
            before_sleep=self._log_wait,
        )
        with database.faults_translated():
            try:
                tries(self.migrate, database)
            except tenacity.RetryError as ended:
                fault = ended.last_attempt.exception()
                if isinstance(fault, errors.UpgradeUnderWay):
                    raise errors.UpgradeUnderWay(schema=self.name, seconds=patience) from None
                raise errors.SchemaInUse(schema=self.name, seconds=patience, statement=_statement(fault)) from fault
        # A newer release may have upgraded them while this upgrade waited.
        return before, self.revision(database)

    def _log_wait(self, state: tenacity.RetryCallState) -> None:
        fault = _fault(state)
        if isinstance(fault, errors.UpgradeUnderWay):
            LOG.warning("The %s schema: waiting for another upgrade", self.name)
        else:
            LOG.warning("The %s schema: waiting for transactions that use a table: %s", self.name, _statement(fault))

    def migrate(self, database: Database, revision: str = "head") -> None:
        """Run the migrations up to a revision, without a retry; tables of a newer revision are not changed.

        :raises UpgradeUnderWay: another upgrade of this schema does not end soon.
        :raises SchemaTooNew: this version does not work on the tables' newer revision.
        """
        from alembic import command

        config = _config(self.versions)
        with database.engine.connect() as connection, _alone(connection, self) as found:
            if found is None or found in self._known_revisions():
                config.attributes["connection"] = connection
                config.attributes["schema"] = self
                command.upgrade(config, revision)
                return
        self.planned(database)  # refuses or logs the newer revision

    def planned(self, database: Database) -> tuple[str | None, str | None]:
        """Return the revisions before and after an upgrade.

        :raises SchemaTooNew: this version does not work on the tables' newer revision.
        :raises ConfigurationError: no revision is recorded, and a table of another program has the name of one of ours.
        """
        before = self.revision(database)
        if before is None:
            self._refuse_other_tables(database)
        if before is None or before in self._known_revisions():
            return before, self.head()
        self.check(database)
        LOG.warning("The %s schema is at revision %s, newer than %s: nothing to do", self.name, before, self.head())
        return before, before

    def _refuse_other_tables(self, database: Database) -> None:
        """Check that tables without a revision can be those of a first upgrade, interrupted or in progress.

        A migration takes tables that exist for its own, and most DDL statements cannot be rolled back: without this
        check it would change the database of a Placement or Nova whose URL was given by mistake.

        :raises ConfigurationError: a table has columns that ours never has.
        """
        if database.lacks_file:
            return

        def foreign(connection: Connection) -> Iterator[tuple[str, list[str]]]:
            inspector = inspect(connection)
            for name in sorted(self.metadata.tables.keys() & set(inspector.get_table_names())):
                ours = {*self.metadata.tables[name].columns.keys(), *self.former_columns.get(name, ())}
                if others := {column["name"] for column in inspector.get_columns(name)} - ours:
                    yield name, sorted(others)

        for name, others in database.read(lambda connection: list(foreign(connection))):
            where = mask_url(database.url.render_as_string(hide_password=True))
            raise errors.ConfigurationError(
                reason=f"the database {where} has a table {name} of another program, with {', '.join(others[:3])}: "
                "give Moorage a database of its own. Nothing was changed"
            )

    def drop(self, database: Database) -> None:
        """Drop the tables, and the tables that record their revision."""

        def work(connection: Connection) -> None:
            self.metadata.drop_all(connection)
            for name in self.bookkeeping_tables:
                Table(name, MetaData()).drop(connection, checkfirst=True)

        database.write(work)

    def revision(self, database: Database) -> str | None:
        """Return the revision of the tables; None if there are no tables, or no SQLite file, which is not created."""
        return None if database.lacks_file else database.read(self.revision_of)

    def revision_of(self, connection: Connection) -> str | None:
        """Return the revision of the tables in a connection's database; None if there are no tables."""
        from alembic.migration import MigrationContext

        options = {"version_table": self.version_table}
        return MigrationContext.configure(connection, opts=options).get_current_revision()

    def head(self) -> str | None:
        """Return the newest revision that this version contains."""
        return scripts_in(self.versions).get_current_head()

    def check(self, database: Database) -> str:
        """Check that this version works on the tables; return their revision.

        A newer revision is accepted if its compatibility table names this version or an older one.

        :raises SchemaMismatch: the tables are older than this version, or missing.
        :raises SchemaTooNew: the tables are newer, and this version does not work on them.
        """
        found, needed = self.revision(database), self.head() or "none"
        if found == needed:
            return found
        known = self._known_revisions()
        if found is None or found in known:
            raise errors.SchemaMismatch(schema=self.name, found=found or "none", needed=needed)
        oldest = database.read(self._oldest_code)
        if oldest not in known:
            raise errors.SchemaTooNew(schema=self.name, found=found, needed=needed, oldest=oldest or found)
        LOG.info("The %s schema is at revision %s, newer than %s, and works with it", self.name, found, needed)
        return found

    def _oldest_code(self, connection: Connection) -> str | None:
        """Return the recorded newest revision of the oldest usable code; None if none is recorded."""
        table = compatibility_table(self.name)
        if not inspect(connection).has_table(table.name):
            return None
        oldest: str | None = connection.scalar(table.select())
        return oldest

    def _known_revisions(self) -> frozenset[str]:
        return frozenset(script.revision for script in scripts_in(self.versions).walk_revisions())


class SchemaProbe:
    """Checks for the readiness of a process that its database answers and that this version works on the tables.

    Its connection is not from the service's pool, so that a full pool does not delay the probe, nor the probe fill the
    pool.

    :param url: the URL of the database; by default that of the main schema.
    :param name: the schema's name in errors; by default its own.
    """

    def __init__(self, conf: cfg.ConfigOpts, schema: Schema, url: str | None = None, name: str | None = None) -> None:
        self._schema = schema
        self.database = Database.configured(conf, url, name or schema.name, pool_size=1)
        self._accepted: str | None = None

    def check(self) -> None:
        """Read the revision of the tables; if it has changed since the last time, check it by :meth:`Schema.check`."""
        found = self._schema.revision(self.database)
        if found is None or found != self._accepted:
            self._accepted = self._schema.check(self.database)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()


@contextmanager
def _alone(connection: Connection, schema: Schema) -> Iterator[str | None]:
    """Keep other upgrades of the schema waiting, because an upgrade derives its steps from the current tables.

    Yield their revision: another upgrade may have changed it shortly before.

    :raises UpgradeUnderWay: another upgrade does not end soon.
    """
    if connection.dialect.name == "sqlite":
        # One transaction for everything, because SQLite's DDL is transactional.
        connection.info[WRITING] = True
        with connection.begin():
            yield schema.revision_of(connection)
        return
    with connection.begin():
        is_ours = connection.scalar(_LOCK, {"schema": schema.name, "seconds": _LOCK_WAIT})
    if not is_ours:
        raise errors.UpgradeUnderWay(schema=schema.name, seconds=_LOCK_WAIT)
    try:
        with connection.begin():
            found = schema.revision_of(connection)
        yield found
    finally:
        # The server releases the lock when the connection ends, for whatever reason.
        connection.invalidate()


@functools.cache
def scripts_in(versions: str) -> "ScriptDirectory":
    """Return the migrations in a package; reading their files takes as long as the rest of a check of the tables."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config(versions))


def _config(versions: str) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("moorage.db.migrations")))
    config.set_main_option("version_locations", str(resources.files(versions)))
    config.set_main_option("path_separator", "newline")
    return config


def _fault(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _statement(fault: BaseException | None) -> str:
    # If the transaction could not begin, the error has no statement, but the server's message.
    return " ".join(str(getattr(fault, "statement", None) or getattr(fault, "orig", None) or fault).split())


def known_schemas() -> dict[str, Schema]:
    """Return the installed schemas by name (entry points ``moorage.schemas``)."""
    return {extension.name: cast(Any, extension.plugin) for extension in ExtensionManager[Any]("moorage.schemas")}
