"""Writes over HTTP whose COMMIT is not answered: each is done once, and answered as if nothing had happened."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import webob
from sqlalchemy import make_url, select
from support.databases.commit_wire import Wire, commit_wire  # noqa: F401 - a fixture
from support.databases.migrated import OnMariaDB

from moorage import ids
from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http.application import application
from placement_store.http.resources import RESOURCES
from placement_store.schema import MAIN, requests

NEWEST = "1.39"
OWNER = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}


class Client:
    """The API on one database; all requests are the administrator's."""

    def __init__(self, database: Database, folder: Path) -> None:
        file = folder / "moorage.conf"
        file.write_text("[placement_api]\nauth_strategy = noauth2\n")
        self._served = application(options.new(files=[file]), database)

    def ask(self, method: str, path: str, body: Any = None, version: str = NEWEST) -> Any:
        headers = {"X-Auth-Token": "admin", "X-Roles": "admin,service", "OpenStack-API-Version": f"placement {version}"}
        request = webob.Request.blank(path, method=method, headers=headers)
        if body is not None:
            request.json = body
            request.content_type = "application/json"
        return request.get_response(self._served)

    def does(self, method: str, path: str, body: Any = None, version: str = NEWEST) -> Any:
        reply = self.ask(method, path, body, version)
        assert reply.status_code in (200, 201, 204), reply.text
        return reply

    def get(self, path: str) -> Any:
        return self.does("GET", path).json


class Room:
    """The objects of one write: a new provider, and a consumer, with allocations if ``used``."""

    def __init__(self, api: Client, *, used: bool = False) -> None:
        self.api, self.uuid, self.consumer = api, ids.fresh(), ids.fresh()
        self.path = f"/resource_providers/{self.uuid}"
        api.does("POST", "/resource_providers", {"name": self.uuid, "uuid": self.uuid})
        self.inventories({"VCPU": {"total": 8}})
        if used:
            api.does("PUT", f"/allocations/{self.consumer}", self.allocations(None))

    @property
    def generation(self) -> int:
        return int(self.api.get(self.path)["generation"])

    def inventories(self, wanted: Any) -> None:
        sent = {"resource_provider_generation": self.generation, "inventories": wanted}
        self.api.does("PUT", f"{self.path}/inventories", sent)

    def allocations(self, generation: int | None) -> dict[str, Any]:
        held = {self.uuid: {"resources": {"VCPU": 2}}}
        return {"allocations": held, "consumer_generation": generation, **OWNER}


class Write(NamedTuple):
    """One operation: its request, and the status of its first answer."""

    method: str
    path: str
    status: int
    body: Any = None
    version: str = NEWEST


def _new_name() -> str:
    return f"CUSTOM_{ids.fresh().replace('-', '_').upper()}"


def _custom(api: Client, kind: str) -> str:
    name = _new_name()
    api.does("PUT", f"/{kind}/{name}")
    return name


def _write_name(api: Client) -> Iterator[tuple[str, Write]]:
    yield "/traits/{name}", Write("PUT", f"/traits/{_new_name()}", 201)
    yield "/traits/{name}", Write("DELETE", f"/traits/{_custom(api, 'traits')}", 204)
    yield "/resource_classes", Write("POST", "/resource_classes", 201, {"name": _new_name()})
    yield "/resource_classes/{name}", Write("PUT", f"/resource_classes/{_new_name()}", 201)
    old = _custom(api, "resource_classes")
    yield "/resource_classes/{name}", Write("PUT", f"/resource_classes/{old}", 200, {"name": _new_name()}, "1.6")
    gone = _custom(api, "resource_classes")
    yield "/resource_classes/{name}", Write("DELETE", f"/resource_classes/{gone}", 204)


def _write_provider(api: Client) -> Iterator[tuple[str, Write]]:
    uuid = ids.fresh()
    yield "/resource_providers", Write("POST", "/resource_providers", 200, {"name": uuid, "uuid": uuid})
    room = Room(api)
    yield "/resource_providers/{uuid}", Write("PUT", room.path, 200, {"name": ids.fresh()})
    yield "/resource_providers/{uuid}", Write("DELETE", room.path, 204)
    room = Room(api)
    resource = "/resource_providers/{uuid}/inventories"
    sent = {"resource_provider_generation": room.generation, "inventories": {"VCPU": {"total": 9}}}
    yield resource, Write("PUT", f"{room.path}/inventories", 200, sent)
    yield resource, Write("POST", f"{room.path}/inventories", 201, {"resource_class": "DISK_GB", "total": 1}, "1.0")
    one = {"resource_provider_generation": room.generation, "total": 10}
    yield f"{resource}/{{resource_class}}", Write("PUT", f"{room.path}/inventories/VCPU", 200, one)
    yield f"{resource}/{{resource_class}}", Write("DELETE", f"{room.path}/inventories/VCPU", 204)
    yield resource, Write("DELETE", f"{room.path}/inventories", 204)
    members = {"aggregates": [ids.fresh()], "resource_provider_generation": room.generation}
    yield "/resource_providers/{uuid}/aggregates", Write("PUT", f"{room.path}/aggregates", 200, members)
    traits = {"traits": ["HW_CPU_X86_AVX"], "resource_provider_generation": room.generation}
    yield "/resource_providers/{uuid}/traits", Write("PUT", f"{room.path}/traits", 200, traits)
    yield "/resource_providers/{uuid}/traits", Write("DELETE", f"{room.path}/traits", 204)


def _write_allocations(api: Client) -> Iterator[tuple[str, Write]]:
    room = Room(api)
    path = f"/allocations/{room.consumer}"
    yield "/allocations/{consumer_uuid}", Write("PUT", path, 204, room.allocations(None))
    yield "/allocations/{consumer_uuid}", Write("DELETE", path, 204)
    room = Room(api)
    yield "/allocations", Write("POST", "/allocations", 204, {room.consumer: room.allocations(None)})
    room = Room(api, used=True)
    held = {"resource_provider_generation": room.generation, "inventories": {"VCPU": {"total": 16}}}
    reshaped = {"inventories": {room.uuid: held}, "allocations": {room.consumer: room.allocations(1)}}
    yield "/reshaper", Write("POST", "/reshaper", 204, reshaped)


FAMILIES: list[Callable[[Client], Iterator[tuple[str, Write]]]] = [_write_name, _write_provider, _write_allocations]


@pytest.fixture
def mariadb_url(migrated_mariadb: OnMariaDB) -> str:
    """The URL of a database with empty tables."""
    return migrated_mariadb.url(MAIN)


@pytest.fixture
def direct(mariadb_url: str, tmp_path: Path) -> Iterator[Client]:
    """The API with a direct connection to the database."""
    database = Database(mariadb_url, MAIN.name)
    names.sync(database)
    yield Client(database, tmp_path)
    database.close()


@pytest.fixture
def cut(direct: Client, mariadb_url: str, wire: Wire, tmp_path: Path) -> Iterator[Client]:
    """The API on the same database, connected through the wire."""
    url = make_url(mariadb_url).set(host="127.0.0.1", port=wire.port)
    database = Database(url.render_as_string(hide_password=False), MAIN.name, lock_wait=1.0)
    yield Client(database, tmp_path)
    database.close()


@pytest.mark.parametrize("passing", [True, False], ids=["after it took effect", "before it took effect"])
def test_a_write_whose_commit_was_lost_gets_the_answer_of_its_first_execution(
    direct: Client, cut: Client, wire: Wire, passing: bool
) -> None:
    done = set()
    for family in FAMILIES:
        for resource, write in family(direct):
            cuts = wire.cuts
            wire.lose_next_commit(passing=passing, loss="cut")

            reply = cut.ask(write.method, write.path, write.body, write.version)

            assert (write, reply.status_code, reply.text) == (write, write.status, reply.text)
            assert wire.cuts == cuts + 1
            done.add((resource, write.method))
    declared = {(resource.path, method) for resource in RESOURCES for method in resource.operations if method != "GET"}
    assert done == declared


def test_a_write_with_a_stale_generation_whose_commit_was_lost_is_still_a_conflict(
    direct: Client, cut: Client, wire: Wire
) -> None:
    room = Room(direct)
    direct.does("PUT", f"/allocations/{room.consumer}", room.allocations(None))

    wire.lose_next_commit(passing=True, loss="cut")
    reply = cut.ask("PUT", f"/allocations/{room.consumer}", room.allocations(None))

    assert reply.status_code == 409


def test_the_ids_of_answered_writes_are_removed(direct: Client, mariadb_url: str) -> None:
    for _ in range(250):
        direct.does("PUT", "/traits/CUSTOM_AGAIN")

    database = Database(mariadb_url, MAIN.name)
    left = database.read(lambda connection: connection.execute(select(requests.c.request_id)).all())
    database.close()
    assert len(left) <= 110
