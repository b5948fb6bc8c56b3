"""The schemas of a database and their migrations: one Alembic branch each, side by side in one database if wanted."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, MetaData, Table
from stevedore import ExtensionManager

from moorage import errors
from moorage.database import Database

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: every table of ours is declared with a schema, and a command that asks a service
# would wait longer for the import than for the answer.


@dataclass(frozen=True)
class Schema:
    """A set of tables that is migrated as one.

    ``versions`` is the package that holds its migrations.
    """

    name: str
    metadata: MetaData
    versions: str

    @property
    def version_table(self) -> str:
        """The table in which Alembic keeps the revision of this schema."""
        return f"alembic_version_{self.name}"

    def upgrade(self, database: Database) -> tuple[str | None, str | None]:
        """Bring the tables to the newest revision; return the revisions before and after.

        :raises StoreUnavailable: the database cannot be reached.
        """
        from alembic import command

        before = self.revision(database)
        config = self._config()
        with database.engine.connect() as connection:
            config.attributes["connection"] = connection
            config.attributes["schema"] = self
            command.upgrade(config, "head")
        return before, self.revision(database)

    def drop(self, database: Database) -> None:
        """Remove the tables with all that is in them, and what says which revision they had.

        :raises StoreUnavailable: the database cannot be reached.
        """

        def work(connection: Connection) -> None:
            self.metadata.drop_all(connection)
            Table(self.version_table, MetaData()).drop(connection, checkfirst=True)

        database.write(work)

    def revision(self, database: Database) -> str | None:
        """Return the revision that the tables have, or nothing where there are none.

        :raises StoreUnavailable: the database cannot be reached.
        """
        from alembic.migration import MigrationContext

        return database.read(
            lambda connection: MigrationContext.configure(
                connection, opts={"version_table": self.version_table}
            ).get_current_revision()
        )

    def head(self) -> str | None:
        """Return the newest revision that this version brings."""
        from alembic.script import ScriptDirectory

        return ScriptDirectory.from_config(self._config()).get_current_head()

    def check(self, database: Database) -> None:
        """Refuse to work on tables of another revision.

        :raises SchemaMismatch: they are older or newer than this version, or not there.
        """
        found, needed = self.revision(database), self.head()
        if found != needed:
            raise errors.SchemaMismatch(schema=self.name, found=found or "none", needed=needed or "none")

    def _config(self) -> "Config":
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", _folder("moorage.migrations"))
        config.set_main_option("version_locations", _folder(self.versions))
        config.set_main_option("path_separator", "newline")
        return config


def _folder(package: str) -> str:
    return str(Path(str(resources.files(package))))


def known_schemas() -> dict[str, Schema]:
    """Return the schemas that the folders of this installation bring, by name (entry points ``moorage.schemas``)."""
    return {extension.name: cast(Any, extension.plugin) for extension in ExtensionManager[Any]("moorage.schemas")}
