"""Test that the root of a disabled host has COMPUTE_STATUS_DISABLED, whatever the agent of the host reports."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases.interrupted_upgrade import migrate_killed_at_each_statement
from support.scheduler.builders import select
from support.scheduler.rig import Rig, node_uuid
from support.scheduler.rig import report as report_of

from filters.resources import ResourcesFilter
from filters.traits import TraitsFilter
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ListHosts
from moorage.model import Inventory, ProviderReport
from placement_store.db.names import sync
from placement_store.providers import rows as providers
from placement_store.providers import traits
from placement_store.schema import MAIN
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import Named

TRAIT = "COMPUTE_STATUS_DISABLED"
EMPTY = {"VCPU": Inventory(total=7), "MEMORY_MB": Inventory(total=32768), "DISK_GB": Inventory(total=500)}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    sync(rig.database)
    rig.add_hosts([1, 2])
    return rig


def marked(rig: Rig, number: int = 1) -> list[str]:
    key = rig.database.read(lambda connection: providers.keys_found(connection, [node_uuid(number)]))[node_uuid(number)]
    return sorted(rig.database.read(lambda connection: traits.of(connection, [key.id])).get(key.id, ()))


def report(rig: Rig, *names: str, number: int = 1) -> None:
    """The host's agent reports its root with these traits."""
    described = ProviderReport(uuid=node_uuid(number), name=f"host{number}", inventories=EMPTY, traits=tuple(names))
    rig.report_providers(described)


def test_a_host_has_the_trait_from_disabling_it_to_enabling_it_and_no_other_host_has(rig: Rig) -> None:
    rig.set_host("host1", disabled=True, disabled_reason="new disks")
    assert (marked(rig), marked(rig, 2)) == ([TRAIT], [])
    rig.set_host("host1", disabled=True, disabled_reason="old disks")
    assert marked(rig) == [TRAIT]
    rig.set_host("host1", disabled=False)
    assert marked(rig) == []


def test_each_change_of_the_trait_bumps_the_generation_and_is_in_the_change_feed(rig: Rig) -> None:
    def state() -> tuple[int, int]:
        key = rig.database.read(lambda connection: providers.rows(connection, None))
        [row] = [row for row in key if row.uuid == node_uuid(1)]
        return row.generation, row.seq

    generation, seq = state()
    rig.set_host("host1", disabled=True)
    assert state() == (generation + 1, seq + 1)
    rig.set_host("host1", disabled=True)
    rig.set_host("host1", forced_down=True)
    assert state() == (generation + 1, seq + 1)
    rig.set_host("host1", disabled=False)
    assert state() == (generation + 2, seq + 2)


def test_a_report_of_the_agent_leaves_the_trait_in_place(rig: Rig) -> None:
    rig.set_host("host1", disabled=True)
    report(rig, "HW_CPU_X86_AVX2")
    assert marked(rig) == [TRAIT, "HW_CPU_X86_AVX2"]
    rig.set_host("host1", disabled=False)
    assert marked(rig) == ["HW_CPU_X86_AVX2"]
    report(rig, "HW_CPU_X86_AVX2", TRAIT)
    rig.set_host("host1", forced_down=True)
    assert marked(rig) == [TRAIT, "HW_CPU_X86_AVX2"], "the trait that the driver has reported is gone"


def test_a_report_that_lacks_only_the_trait_changes_nothing(rig: Rig) -> None:
    report(rig, "HW_CPU_X86_AVX2")
    rig.set_host("host1", disabled=True)
    before = [row.generation for row in rig.database.read(lambda connection: providers.rows(connection, None))]
    report(rig, "HW_CPU_X86_AVX2")
    assert [row.generation for row in rig.database.read(lambda connection: providers.rows(connection, None))] == before


def test_a_disabled_host_whose_provider_is_created_later_has_the_trait(rig: Rig) -> None:
    rig.report([report_of(3)], ["host3"])
    rig.set_host("host3", disabled=True)
    report(rig, "HW_CPU_X86_AVX2", number=3)
    assert marked(rig, 3) == [TRAIT, "HW_CPU_X86_AVX2"]


@pytest.mark.parametrize("is_provider_first", [True, False], ids=["provider first", "host first"])
def test_a_further_node_of_a_host_is_disabled_and_forced_down_as_the_host_is(
    rig: Rig, *, is_provider_first: bool
) -> None:
    rig.set_host("host1", disabled=True, disabled_reason="new disks", forced_down=True)
    if is_provider_first:
        report(rig, number=3)
    rig.report([report_of(3, service_host="host1"), report_of(4)], ["host1", "host4"])
    if not is_provider_first:
        report(rig, number=3)

    listed = {host.nodename: host for host in rig.serve(ListHosts())}
    flags = {name: (host.disabled, host.disabled_reason, host.forced_down) for name, host in listed.items()}
    assert flags["host3"] == flags["host1"] == (True, "new disks", True)
    assert flags["host4"] == (False, None, False)
    assert (marked(rig), marked(rig, 3)) == ([TRAIT], [TRAIT])


def test_the_default_request_filter_excludes_disabled_hosts_without_the_compute_filter(rig: Rig) -> None:
    by_traits = Funnel([Named("traits", TraitsFilter({})), Named("resources", ResourcesFilter({}))], [])
    scheduler = rig.scheduler(plugins=by_traits, request_filters=["disabled_hosts"])
    rig.set_host("host1", disabled=True)
    assert [scheduler.select(select(f"r{number}"))[0][0].service_host for number in range(3)] == ["host2"] * 3
    rig.set_host("host2", disabled=True)
    with pytest.raises(errors.NoValidHost, match="have not the required traits"):
        scheduler.select(select("r3"))
    rig.set_host("host1", disabled=False)
    assert scheduler.select(select("r4"))[0][0].service_host == "host1"


@pytest.mark.parametrize("is_killed", [False, True], ids=["at once", "killed at each statement"])
def test_an_upgrade_gives_the_trait_to_hosts_that_are_already_disabled(
    database_before: Database, *, is_killed: bool
) -> None:
    database = database_before
    MAIN.migrate(database, "main_0006")
    with database.engine.connect() as connection, connection.begin():
        for number, disabled in ((1, 1), (2, 0)):
            connection.exec_driver_sql(
                "INSERT INTO resource_providers (id, uuid, name, generation, seq, root_provider_id, created_at,"
                f" updated_at) VALUES ({number}, '{node_uuid(number)}', 'host{number}', 5, 5, {number}, 1, 1)"
            )
            connection.exec_driver_sql(
                "INSERT INTO hosts (cell_uuid, service_host, nodename, compute_node_uuid, agent, availability_zone,"
                " attributes, disabled, up, forced_down, seq, heartbeat_at, created_at, updated_at)"
                f" VALUES ('{ids.derived('cell')}', 'host{number}', 'host{number}', '{node_uuid(number)}', 'agent',"
                f" 'nova', '{{}}', {disabled}, 1, 0, 0, 1, 1, 1)"
            )
    if is_killed:
        migrate_killed_at_each_statement(MAIN, database)
    else:
        MAIN.upgrade(database)

    assert database.read(lambda connection: traits.of(connection, [1, 2])) == {1: {TRAIT}}
    found = {row.id: row.generation for row in database.read(lambda connection: providers.rows(connection, None))}
    assert found == {1: 6, 2: 5}


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.servers)])
def database_before(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path}/old.sqlite" if request.param == "sqlite" else request.getfixturevalue("mariadb_url")
    database = Database(url, "main")
    yield database
    database.close()
