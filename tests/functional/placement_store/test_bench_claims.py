"""Test the command `moorage bench claims`, and the stores that benchmarks fill."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.audit import judge
from harness.bench import store
from moorage.cli.shell import main
from moorage.db.database import Database
from moorage.model import DISK_GB, MEMORY_MB, VCPU
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{tmp_path}/main.sqlite", "main")) as database:
        store.create(database)
        yield database


def test_the_benchmark_of_claims_writes_only_to_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--hosts", "20", "--clients", "3", "--per-request", "4", "--seconds", "1"]
    assert main(["bench", "claims", *words, "-f", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["hosts"], figures["clients"], figures["per_request"]) == (20, 3, 4)
    assert figures["claims_per_s"] == pytest.approx(4 * figures["calls_per_s"], abs=0.5)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["cpu_ms"].keys() == {"clients"}
    assert (figures["conflicts"], figures["refused"]) == (0, {})
    assert (figures["overcommitted"], figures["leaked"]) == (0, 0)


def test_a_database_url_and_started_servers_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "claims", "--servers", "--database-url", "sqlite://"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("occupancy", [0.0, 30.0, 95.0, 100.0])
def test_hosts_are_filled_around_the_occupancy_and_the_store_is_sound(
    database: Database, occupancy: float, nested: bool
) -> None:
    hosts = 20
    store.fill(database, range(hosts), store.fake_hosts(store.host_settings(occupancy, nested=nested)))

    instances = store.occupy(database, occupancy)

    names = ResourceClassNames(database)
    found = database.read(lambda connection: providers.rows(connection, None))
    assert len(found) == hosts * (3 if nested else 1)
    for name in (VCPU, MEMORY_MB, DISK_GB):
        held = [row.inventories[names.id_of(name)] for row in found if names.id_of(name) in row.inventories]
        used = [100 * inventory.used / inventory.capacity for inventory in held]
        assert sum(used) / len(used) == pytest.approx(occupancy, abs=1)
        assert (max(used) - min(used) > 5) is (0 < occupancy < 100)
    assert judge(database, instances).clean
