"""Test that a heal restores from the cells' records data that a store has lost or that other clients have changed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select, update
from support.databases.store_copy import copied, put_back
from support.operations.cloud import TroublesomeCloud
from support.operations.healed_servers import LARGE, PLAN, Servers

from compute.service import ComputeService
from conductor.schema import CELL, CONDUCTOR, conductor_instances
from harness.commands import FLAVOR
from harness.waiting import wait_until
from moorage import errors, failpoints, ids
from moorage.cli.audit.healing import Healer
from moorage.cli.clients import Clients
from moorage.db.database import Database
from moorage.messages import (
    AcceptClaim,
    ConfirmMigration,
    DeleteAllocations,
    GetAllocations,
    MigrateInstance,
    ResizeInstance,
    RevertMigration,
    SelectDestinations,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.model import RequestSpec
from placement_store import cells
from placement_store.db import change_feed
from placement_store.schema import MAIN, allocations, consumers, inventories, tombstones


@pytest.fixture(scope="module")
def emptied() -> Iterator[Servers]:
    with TroublesomeCloud(PLAN) as cloud:
        yield Servers(cloud)


@pytest.fixture
def servers(emptied: Servers) -> Servers:
    """Return the cloud with new servers in all states."""
    assert emptied.held() == {}, "at the end of each test all servers are deleted"
    emptied.furnish()
    assert emptied.findings() == []
    return emptied


def lose_consumers(connection: Connection) -> None:
    """Delete the rows of all consumers; their allocations stay without a consumer."""
    connection.execute(delete(consumers))


def lose_everything(connection: Connection) -> None:
    connection.execute(delete(consumers))
    connection.execute(delete(allocations))
    connection.execute(update(inventories).values(used=0))


def change_amounts(connection: Connection) -> None:
    connection.execute(update(allocations).values(used=1))


def take_amounts_away(connection: Connection) -> None:
    """Leave the consumers with their claims, but without allocations."""
    connection.execute(delete(allocations))


def change_claims(connection: Connection) -> None:
    for row in connection.execute(select(consumers.c.id).where(consumers.c.claim_id.is_not(None))).all():
        connection.execute(update(consumers).where(consumers.c.id == row.id).values(claim_id=ids.fresh()))


def forget_claims(connection: Connection) -> None:
    """Leave allocations without claims, as after a repair by hand."""
    connection.execute(update(consumers).values(claim_id=None, root_provider_id=None, accepted_by=None))


BREAKS = [lose_consumers, lose_everything, change_amounts, take_amounts_away, change_claims, forget_claims]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda work: work.__name__)
def test_after_a_heal_the_audit_is_clean_and_all_operations_work(
    servers: Servers, broken: Callable[[Connection], None]
) -> None:
    before = servers.held()
    servers.break_(broken)
    assert servers.findings() != []

    assert servers.heal() == {}

    assert servers.findings() == []
    assert servers.held() == before
    assert servers.heal() == {}
    servers.play()


# --- Damage that cannot be healed at once, or at all ------------------------------------------------------------------


@pytest.fixture(scope="module")
def module_servers() -> Iterator[Servers]:
    with TroublesomeCloud(replace(PLAN, hosts=2, cells=1)) as cloud:
        few = Servers(cloud, {"one": ids.fresh(), "two": ids.fresh()})
        for host, uuid in zip(cloud.hosts(), few.uuids.values(), strict=True):
            few.build(uuid, force_hosts=(host.service_host,))
        yield few


@pytest.fixture
def few(module_servers: Servers) -> Iterator[Servers]:
    """Return a cloud with one server on each of two hosts; its inventories are restored at the end."""
    found = module_servers.cloud.database.read(lambda connection: connection.execute(select(inventories)).all())
    yield module_servers
    module_servers.break_(lambda connection: _set_totals(connection, found))
    assert module_servers.findings() == [], "what one test has broken is healed before the next"


def _set_totals(connection: Connection, rows: Sequence[Any]) -> None:
    """Restore the totals and ratios of inventories."""
    for row in rows:
        this = (inventories.c[name] == getattr(row, name) for name in ("resource_provider_id", "resource_class_id"))
        room = {"total": row.total, "allocation_ratio": row.allocation_ratio}
        connection.execute(update(inventories).where(*this).values(room))
    change_feed.record(connection, provider_ids={row.resource_provider_id for row in rows})


def fill(servers: Servers) -> None:
    """Change the inventories so that nothing more fits."""
    full = update(inventories).where(inventories.c.used > 0).values(total=inventories.c.used + inventories.c.reserved)
    servers.break_(lambda connection: connection.execute(full.values(allocation_ratio=1.0)))


def test_servers_that_hold_each_others_full_hosts_are_healed(few: Servers) -> None:
    before = few.held()

    def exchange(connection: Connection) -> None:
        one, two = connection.execute(select(consumers.c.id, consumers.c.root_provider_id)).all()
        for source, target in ((one.id, -1), (two.id, one.id), (-1, two.id)):
            these = allocations.c.consumer_id == source
            connection.execute(update(allocations).where(these).values(consumer_id=target))
        for row, other in ((one, two), (two, one)):
            values = {"claim_id": ids.fresh(), "root_provider_id": other.root_provider_id}
            connection.execute(update(consumers).where(consumers.c.id == row.id).values(values))

    fill(few)
    few.break_(exchange)
    assert few.held() != before
    assert sorted(kind for kind, *_ in few.findings()) == ["claim", "claim"]

    assert few.heal() == {}

    assert few.held() == before


def test_allocations_that_do_not_fit_stay_a_finding_with_a_reason_until_there_is_room(few: Servers) -> None:
    before, uuid = few.held(), few.uuids["one"]
    few.break_(lose_everything)
    other = ids.fresh()
    node = few.cloud.hosts()[0].compute_node_uuid
    used = {"VCPU": FLAVOR.vcpus}
    fill(few)
    few.break_(lambda c: c.execute(update(inventories).values(total=FLAVOR.memory_mb, allocation_ratio=1.0)))
    few.break_(lambda c: c.execute(_vcpus().values(total=FLAVOR.vcpus)))
    few.hold(other, {node: used})

    left = few.heal()

    assert [(kind, subject) for kind, subject, _ in left] == [("unheld", uuid)]
    [reason] = left.values()
    assert reason.startswith("not healed: There is not enough room on 1 inventories, the first of them VCPU")
    few.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=other, for_good=True))
    assert few.heal() == {}
    assert few.held() == before


def test_an_instance_that_was_deleted_for_good_in_the_store_is_not_revived(few: Servers) -> None:
    uuid = few.uuids["two"]
    few.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=uuid, for_good=True))

    [reason] = few.heal().values()

    assert f"{uuid} has been deleted" in reason
    few.break_(lambda connection: connection.execute(delete(tombstones)))
    assert few.heal() == {}


def test_an_unknown_claim_is_released_and_one_of_another_service_is_kept(few: Servers) -> None:
    unknown, of_others = ids.fresh(), ids.fresh()
    for uuid, owner in ((unknown, "conductor"), (of_others, "conductor.of.others")):
        spec = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR)
        message = SelectDestinations(
            request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,), num_alternates=0, owner=owner
        )
        [[chosen]] = few.call(message)
        few.call(
            AcceptClaim(
                request_id=ids.fresh(),
                consumer_uuid=uuid,
                claim_id=str(chosen.claim_id),
                attempt_id=ids.fresh(),
                host=chosen.service_host,
            )
        )

    left = few.heal()

    # Its owner is not in this cloud, so it is not known whether the claim is leaked.
    assert list(left) == []
    assert few.call(GetAllocations(consumer_uuid=of_others)).owner == "conductor.of.others"
    with pytest.raises(errors.ConsumerNotFound):
        few.call(GetAllocations(consumer_uuid=unknown))
    few.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=of_others, for_good=True))


def test_a_plan_changes_nothing_and_names_the_remedy_of_each_finding(few: Servers) -> None:
    few.break_(lose_everything)
    clients = Clients(few.cloud.configuration(), 20.0)
    found = few.audit()

    plan = Healer(clients).plan(found.findings, found.state)
    clients.close()

    assert set(plan.remedies.values()) == {"set it to what its cell has on record (active)"}
    assert few.held() == {}
    assert few.heal() == {}


def test_a_server_that_only_its_cell_knows_keeps_what_it_holds_and_the_plan_says_so(few: Servers) -> None:
    lost = conductor_instances.c.uuid == few.uuids["one"]
    query = select(conductor_instances).where(lost)
    backup = [row._asdict() for row in few.cloud.database.read(lambda connection: connection.execute(query).all())]
    few.break_(lambda connection: connection.execute(delete(conductor_instances).where(lost)))
    clients = Clients(few.cloud.configuration(), 20.0)
    before, found = few.held(), few.audit()

    plan = Healer(clients).plan(found.findings, found.state)
    clients.close()

    assert [finding.kind for finding in found.findings] == ["leaked"]
    assert list(plan.remedies.values()) == ["nothing: its cell has it on record (active)"]
    assert not plan
    assert few.held() == before
    few.break_(lambda connection: connection.execute(conductor_instances.insert(), backup))
    assert few.findings() == []


def test_while_a_server_is_healed_other_orders_are_refused(few: Servers) -> None:
    uuid, reached, go_on = few.uuids["one"], threading.Event(), threading.Event()

    def paused(name: str) -> None:
        if name == "step.heal.heal.begin":
            reached.set()
            go_on.wait(20.0)

    few.break_(lose_everything)
    with failpoints.observed(paused), ThreadPoolExecutor(1) as threads:
        healed = threads.submit(few.heal)
        try:
            assert reached.wait(20.0)
            with pytest.raises(errors.InvalidState, match="heal of instance"):
                few.order(ShelveInstance, uuid)
        finally:
            go_on.set()
        assert healed.result() == {}


@pytest.mark.parametrize("kind", [ConfirmMigration, RevertMigration])
def test_a_move_that_cannot_end_because_of_lost_allocations_ends_after_a_heal(few: Servers, kind: Any) -> None:
    uuid = few.uuids["one"]
    few.order(MigrateInstance, uuid)
    few.becomes(uuid, "moved")
    few.break_(lose_everything)
    few.order(kind, uuid)
    wait_until(lambda: few.is_stuck(uuid), "the end of the move to be refused", 30, 0.05)

    assert few.heal() == {}

    # The operation retries by itself after a while; a repeated order makes it retry at once.
    with suppress(errors.InvalidState):
        few.order(kind, uuid)
    few.becomes(uuid, "active")
    wait_until(lambda: not few.pending(), "nothing to be under way", 30, 0.05)


def test_a_failed_move_that_cannot_return_to_its_source_does_so_after_a_heal(few: Servers) -> None:
    uuid = few.uuids["one"]
    source = few.show(uuid).host
    for host in few.cloud.hosts():
        if host.service_host != source:
            few.cloud.faults.failing.add((uuid, host.service_host))

    lost = threading.Event()

    def loses(name: str) -> None:
        if name == "step.move.give_back.begin" and not lost.is_set():
            lost.set()
            few.break_(lose_everything)

    with failpoints.observed(loses):
        few.order(MigrateInstance, uuid)
        wait_until(lambda: few.is_stuck(uuid), "the source not to be given back", 30, 0.05)
    few.cloud.faults.forget(uuid)

    assert few.heal() == {}

    assert few.becomes(uuid, "active").host == source


def _vcpus() -> Any:
    return update(inventories).where(inventories.c.resource_class_id == 0)


# --- A backup of the main schema --------------------------------------------------------------------------------------


#: A host that is added after the backup.
LATE_HOST = "late-host-0001"


class CloudOfTwoDatabases(TroublesomeCloud):
    """A cloud whose conductors have their records in a database of their own, so that only the store is restored."""

    def compute(self, cell: str, hosts: int) -> ComputeService:
        if cell != "late":
            return super().compute(cell, hosts)
        layout = {"hosts": hosts, "host_prefix": "late-host", "state_file": f"{self.folder}/late.sqlite"}
        return ComputeService(self.configuration(compute={"agent": "late"}, fake_driver=layout), "cell1")

    @property
    def records(self) -> str:
        return f"sqlite:///{self.folder}/records.sqlite"

    def configuration(self, **groups: Any) -> Any:
        conductor = {"connection": self.records, **groups.pop("conductor", {})}
        return super().configuration(**groups, conductor=conductor)

    def _create_schemas(self) -> None:
        MAIN.upgrade(self.database)
        records = Database(self.records, "records")
        for schema in (CONDUCTOR, CELL):
            schema.upgrade(records)
        records.close()
        for name in self.cell_names:
            uuid = ids.derived("harness", self.plan.seed, "cell", name)
            cells.create(self.database, name=name, uuid=uuid, database_connection=self.records)


@pytest.fixture
def apart() -> Iterator[Servers]:
    with CloudOfTwoDatabases(PLAN) as cloud:
        furnished = Servers(cloud)
        furnished.furnish()
        yield furnished


def change_all(servers: Servers) -> None:
    """Change the state of every server."""
    uuids = servers.uuids
    servers.order(MigrateInstance, uuids["active"])
    servers.becomes(uuids["active"], "moved")
    servers.end(uuids["active"], ConfirmMigration)
    servers.order(ResizeInstance, uuids["grouped"], flavor=LARGE)
    servers.becomes(uuids["grouped"], "moved")
    servers.end(uuids["moved"], ConfirmMigration)
    servers.order(UnshelveInstance, uuids["shelved"])
    servers.becomes(uuids["shelved"], "active")
    servers.shelve(uuids["attached"])
    servers.cloud.faults.forget(uuids["evacuated"])
    wait_until(lambda: not servers.waits_for(uuids["evacuated"]), "the former host to be cleaned up", 60, 0.1)
    servers.delete(uuids["doomed"])
    cloud = servers.cloud
    cloud.add("compute-late", cloud.compute("late", 1))
    servers.comes_up(LATE_HOST)
    uuids["new"] = ids.fresh()
    servers.build(uuids["new"], force_hosts=(LATE_HOST,))


def test_a_heal_brings_an_older_copy_of_the_store_up_to_date(apart: Servers) -> None:
    apart.uuids["doomed"] = ids.fresh()
    apart.build(apart.uuids["doomed"])
    copy = copied(apart.cloud.database)
    change_all(apart)
    assert apart.findings() == []
    present = apart.held()

    put_back(apart.cloud.database, copy)
    apart.break_(change_feed.begin_history)
    apart.comes_up(LATE_HOST)
    assert {kind for kind, _, _ in apart.findings()} >= {"unheld", "claim", "leaked"}
    assert apart.heal() == {}

    assert apart.findings() == []
    assert apart.held() == present
    assert apart.heal() == {}
    apart.uuids["grouped"], apart.uuids["moved"] = apart.uuids["moved"], apart.uuids["grouped"]
    apart.play()
