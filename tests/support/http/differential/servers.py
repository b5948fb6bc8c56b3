"""Both servers in this process, each on its own SQLite database, with the generations that each has."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import webob
from oslo_config import cfg
from sqlalchemy import Engine, MetaData, text

from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http.application import application
from placement_store.schema import MAIN, METADATA
from support.databases import migrated

#: The roles that allow all requests, including the reshaper.
HEADERS = {"X-Auth-Token": "admin", "X-Roles": "admin,service,reader", "Accept": "application/json"}
#: The tables of names: their custom rows are deleted over the API, because the servers cache them.
_NAMES = {"resource_classes": "/resource_classes", "traits": "/traits"}


class Generations(NamedTuple):
    """The generations of all providers and consumers of a server, by uuid."""

    providers: Mapping[str, int]
    consumers: Mapping[str, int]


class Server:
    """One of the two servers: its application and its database."""

    def __init__(self, served: Callable[..., Any], engine: Engine, tables: MetaData) -> None:
        self.application = served
        self._engine = engine
        self._tables = tables

    def ask(
        self, method: str, path: str, version: str | None, body: bytes | None, headers: Mapping[str, str]
    ) -> webob.Response:
        """Send one request to the application."""
        sent = {name: value for name, value in {**HEADERS, **headers}.items() if value}
        if version is not None:
            sent["OpenStack-API-Version"] = f"placement {version}"
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        request = webob.Request.blank(path, method=method, headers=sent, body=body or b"")
        return request.get_response(self.application)

    def generations(self) -> Generations:
        """Read the generations from the database."""
        with self._engine.connect() as connection:
            return Generations(
                *(
                    {
                        row.uuid: row.generation
                        for row in connection.execute(text(f"SELECT uuid, generation FROM {table}"))
                    }
                    for table in ("resource_providers", "consumers")
                )
            )

    def allocations(self) -> Mapping[str, Collection[tuple[Any, ...]]]:
        """Read the allocations of each provider that has any, by its uuid, from the database."""
        found: dict[str, set[tuple[Any, ...]]] = {}
        statement = (
            "SELECT p.uuid, a.consumer_id, a.resource_class_id, a.used FROM allocations a "
            "JOIN resource_providers p ON p.id = a.resource_provider_id"
        )
        with self._engine.connect() as connection:
            for uuid, *allocation in connection.execute(text(statement)):
                found.setdefault(uuid, set()).add(tuple(allocation))
        return found

    def execute(self, statement: str) -> None:
        """Change the database directly, without the server."""
        with self._engine.begin() as connection:
            connection.execute(text(statement))

    def empty(self) -> None:
        """Delete everything but the standard names."""
        with self._engine.begin() as connection:
            connection.execute(text("UPDATE resource_providers SET root_provider_id = NULL, parent_provider_id = NULL"))
            for table in reversed(self._tables.sorted_tables):
                if table.name not in (*_NAMES, "alembic_version"):
                    connection.execute(table.delete())
            custom = [
                f"{path}/{name}"
                for table, path in _NAMES.items()
                for name in connection.scalars(text(f"SELECT name FROM {table} WHERE name LIKE 'CUSTOM%'"))
            ]
        for path in custom:
            assert self.ask("DELETE", path, "1.39", None, {}).status_int in (
                204,
                404,
            )  # Ours keeps rows of deleted names.


@contextmanager
def ours(folder: Path) -> Iterator[Server]:
    """Serve our API."""
    url = f"sqlite:///{folder}/ours.sqlite"
    migrated.give_tables(url, MAIN)
    conf = options.new(files=[])
    conf.set_override("auth_strategy", "noauth2", group="placement_api")
    with closing(Database(url, MAIN.name)) as database:
        names.sync(database)
        yield Server(application(conf, database), database.engine, METADATA)


#: The published Placement; it can have only one database in each process.
_PUBLISHED: list[Server] = []


@contextmanager
def published(folder: Path) -> Iterator[Server]:
    """Serve the published Placement from its package, on an empty database."""
    if not _PUBLISHED:
        _PUBLISHED.append(_served(folder))
    [server] = _PUBLISHED
    server.empty()
    yield server


def _served(folder: Path) -> Server:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from placement import conf as placement_conf
        from placement import db_api, deploy
        from placement.db.sqlalchemy import migration, models

        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        conf.set_override("auth_strategy", "noauth2", group="api")
        conf.set_override("connection", f"sqlite:///{folder}/published.sqlite", group="placement_database")
        conf.set_override("sqlite_synchronous", False, group="placement_database")
        conf([], default_config_files=[], default_config_dirs=[])
        db_api.configure(conf)
        engine = db_api.get_placement_engine()
        migration.create_schema(engine)
        return Server(deploy.loadapp(conf), engine, models.BASE.metadata)
