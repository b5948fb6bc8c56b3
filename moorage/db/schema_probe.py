"""A probe of a schema's database for the readiness of a process, with its own connection."""

from oslo_config import cfg

from moorage.db.database import Database
from moorage.db.schemas import Schema


class SchemaProbe:
    """Checks that the database answers and that this version works on the tables.

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
        """Read the revision of the tables, and check it if it has changed since the last time.

        :raises StoreUnavailable: the database cannot be reached.
        :raises SchemaMismatch: the tables are older than this version, or missing.
        :raises SchemaTooNew: the tables are newer, and this version does not work on them.
        """
        found = self._schema.revision(self.database)
        if found is None or found != self._accepted:
            self._accepted = self._schema.check(self.database)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()
