"""Test host aggregates on SQLite and on MariaDB: members, the change feed, zones, and the aggregates of providers."""

from collections.abc import Callable

import pytest
from support.placement_store.builders import Store
from support.scheduler.aggregate_builders import (
    Aggregates,
    all_rows,
    host_rows,
    marks,
    members,
    metadata,
    provider,
    told_since,
)
from support.scheduler.builders import CELLS, select
from support.scheduler.rig import Rig, node_uuid, report

from moorage import errors, ids
from moorage.messages import (
    CreateResourceProvider,
    DeleteHost,
    PutAllocations,
    SetAggregates,
)
from moorage.model import Inventory, ProviderReport, ResourceGroup
from placement_store.schema import provider_aggregates
from scheduler.registry import hosts


@pytest.fixture
def aggregates(rig: Rig) -> Aggregates:
    """No aggregates yet, and four hosts, of which two in different cells have one name."""
    rig.add_hosts([1, 2, 3])
    rig.add_hosts([4], cell=1, service_host="host3")
    return Aggregates(rig)


def retire(rig: Rig, number: int) -> None:
    """Delete a host for good."""
    name = f"host{number}"
    rig.set_host(name, forced_down=True)
    rig.serve(DeleteHost(request_id=rig.fresh(), service_host=name))


# --- The aggregates themselves --------------------------------------------------------------------------------------


def test_an_aggregate_is_created_changed_shown_and_deleted(aggregates: Aggregates) -> None:
    created = aggregates.create("ssd", disk="ssd", availability_zone="a")
    assert (created.name, created.metadata, created.hosts) == ("ssd", {"disk": "ssd", "availability_zone": "a"}, ())
    assert aggregates.get("ssd") == aggregates.get(created.uuid) == created
    changed = aggregates.change("ssd", name="nvme", disk="nvme", availability_zone=None, rack="ü" * 4096)
    assert (changed.uuid, changed.metadata) == (created.uuid, {"disk": "nvme", "rack": "ü" * 4096})
    assert aggregates.get(created.uuid) == changed
    assert aggregates.delete("nvme") == changed
    assert aggregates.listed() == []
    for gone in ("ssd", "nvme", created.uuid):
        with pytest.raises(errors.HostAggregateNotFound, match=gone):
            aggregates.get(gone)


def test_names_are_unique_and_case_sensitive(aggregates: Aggregates) -> None:
    first = aggregates.create("one")
    aggregates.create("ONE")
    for name, uuid in (("one", None), ("two", first.uuid)):
        with pytest.raises(errors.AlreadyExists, match="host aggregate"):
            aggregates.create(name, uuid=uuid)
    with pytest.raises(errors.AlreadyExists, match="host aggregate ONE"):
        aggregates.change("one", name="ONE", left="alone")
    assert aggregates.get("one") == first
    assert aggregates.listed() == ["ONE", "one"]


@pytest.mark.parametrize("name", ["süd", "\U0001f680", "ß\u200b"])
def test_an_aggregate_is_named_in_any_script(aggregates: Aggregates, name: str) -> None:
    with pytest.raises(errors.HostAggregateNotFound, match=name):
        aggregates.get(name)
    created = aggregates.create(name)
    assert aggregates.get(name) == aggregates.get(created.uuid) == created
    assert aggregates.add(name, "host1").hosts
    assert aggregates.change(name, disk="ssd").metadata == {"disk": "ssd"}
    assert aggregates.delete(name, force=True).name == name


def test_a_name_with_a_trailing_blank_is_another_name(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("ssd")
    for wrong in (
        lambda: aggregates.add("ssd", "host1 "),
        lambda: aggregates.add("ssd ", "host1"),
        lambda: aggregates.change("ssd ", disk="ssd"),
        lambda: aggregates.delete("ssd "),
        lambda: rig.set_host("host1 ", disabled=True),
        lambda: rig.serve(DeleteHost(request_id=rig.fresh(), service_host="host1 ")),
    ):
        with pytest.raises(errors.NotFound):
            wrong()
    assert aggregates.get("ssd").hosts == ()


# --- Hosts and the view ---------------------------------------------------------------------------------------------


def test_only_a_host_that_is_added_or_removed_is_in_the_change_feed(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("ssd", disk="ssd")
    mark = marks(rig)
    added = aggregates.add("ssd", "host1")
    assert members(added) == [(CELLS[0], "host1")]
    assert told_since(rig, mark) == ({node_uuid(1)}, {"host1"})
    assert metadata(rig, "host1") == {"disk": {"ssd"}}
    assert metadata(rig, "host2") == {}
    aggregates.add("ssd", "host2")
    mark = marks(rig)
    aggregates.remove("ssd", "host1")
    assert told_since(rig, mark) == ({node_uuid(1)}, {"host1"})
    assert metadata(rig, "host1") == {}
    assert aggregates.listed("host1") == []
    assert aggregates.listed("host2") == ["ssd"]


def test_changed_metadata_puts_each_host_and_no_provider_into_the_change_feed(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("ssd", "host1", "host2", disk="ssd")
    scheduler = rig.scheduler()
    mark, generation = marks(rig), provider(rig, 1).generation
    aggregates.change("ssd", disk="nvme", ram_weight_multiplier="7", availability_zone="e")
    assert told_since(rig, mark) == (set(), {"host1", "host2"})
    assert metadata(rig, "host2")["disk"] == {"nvme"}
    assert provider(rig, 1).generation == generation
    scheduler.follow()
    view = scheduler.host_cache.snapshot()
    inside = view.named(["host1", "host2"])
    assert view.metadata_number("ram_weight_multiplier", 1.0).tolist() == [7.0 if each else 1.0 for each in inside]
    assert view.in_zone("e").tolist() == inside.tolist()
    assert view.where_metadata("disk", lambda values: values == {"nvme"}).tolist() == inside.tolist()


def test_a_host_has_the_values_of_all_its_aggregates(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("one", "host1", disk="ssd", rack="7")
    aggregates.create("two", "host1", "host2", disk="nvme")
    assert metadata(rig, "host1") == {"disk": {"ssd", "nvme"}, "rack": {"7"}}
    assert metadata(rig, "host2") == {"disk": {"nvme"}}
    aggregates.delete("two", force=True)
    assert metadata(rig, "host1") == {"disk": {"ssd"}, "rack": {"7"}}


def test_setting_what_is_already_set_changes_nothing(rig: Rig, aggregates: Aggregates) -> None:
    before = aggregates.create("ssd", "host1", disk="ssd")
    mark = marks(rig)
    assert aggregates.add("ssd", "host1") == before
    assert aggregates.change("ssd", name="ssd", disk="ssd", other=None) == before
    assert aggregates.change("ssd", name="renamed").metadata == before.metadata
    assert told_since(rig, mark) == (set(), set())
    assert marks(rig) == mark


def test_an_aggregate_with_hosts_is_deleted_only_by_force(rig: Rig, aggregates: Aggregates) -> None:
    before = aggregates.create("ssd", "host1", disk="ssd")
    mark = marks(rig)
    with pytest.raises(errors.InvalidState, match="ssd has 1 host"):
        aggregates.delete("ssd")
    with pytest.raises(errors.InvalidState):
        aggregates.delete("ssd", dry_run=True)
    assert aggregates.delete("ssd", force=True, dry_run=True) == before
    assert (aggregates.get("ssd"), marks(rig)) == (before, mark)
    assert aggregates.delete("ssd", force=True) == before
    assert told_since(rig, mark) == ({node_uuid(1)}, {"host1"})
    assert (metadata(rig, "host1"), provider(rig, 1).aggregates) == ({}, ())
    # Its uuid can be used again.
    assert aggregates.create("again", uuid=before.uuid).hosts == ()


# --- Zones ----------------------------------------------------------------------------------------------------------


def zones(rig: Rig) -> dict[str, str]:
    """Return the zone of each host, which is the same for schedulers and for operators."""
    seen = {name: row.availability_zone for name, row in host_rows(rig).items()}
    listed = rig.database.read(hosts.states)
    assert {state.service_host: state.availability_zone for state in listed} == seen
    return seen


def test_an_aggregate_gives_its_hosts_their_zone_whatever_their_agents_report(rig: Rig) -> None:
    rig.add_hosts([1, 2], availability_zone="reported")
    aggregates = Aggregates(rig)
    aggregates.create("east", "host1", availability_zone="e")
    assert zones(rig) == {"host1": "e", "host2": "reported"}
    rig.report([report(1, availability_zone="another"), report(2, availability_zone="another")])
    assert zones(rig) == {"host1": "e", "host2": "another"}
    aggregates.change("east", availability_zone="f")
    assert zones(rig)["host1"] == "f"
    aggregates.change("east", availability_zone=None)
    assert zones(rig) == {"host1": "another", "host2": "another"}


def test_each_change_that_would_give_a_host_two_zones_is_refused(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("east", "host1", availability_zone="e")
    aggregates.create("west", "host2", availability_zone="w")
    aggregates.create("also-east", "host1", availability_zone="e")
    aggregates.create("plain", "host1", "host2", disk="ssd")
    before = [aggregates.get(name) for name in aggregates.listed()]
    mark = marks(rig)
    with pytest.raises(errors.ZoneConflict) as caught:
        aggregates.add("west", "host1")
    assert (caught.value.host, caught.value.other) == ("host1", "w")
    assert (caught.value.zone, caught.value.aggregate) in {("e", "east"), ("e", "also-east")}
    with pytest.raises(errors.ZoneConflict):
        aggregates.change("east", availability_zone="x")
    with pytest.raises(errors.ZoneConflict):
        aggregates.change("plain", availability_zone="e")
    assert [aggregates.get(name) for name in aggregates.listed()] == before
    assert marks(rig) == mark
    assert zones(rig)["host1"] == "e"


def test_a_host_with_servers_does_not_change_its_zone(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("east", "host1", availability_zone="e")
    aggregates.create("plain", disk="ssd")
    aggregates.create("nova", availability_zone="nova")
    scheduler = rig.scheduler()
    [[claimed]] = scheduler.select(select("r1", availability_zone="e"))
    assert (claimed.service_host, claimed.availability_zone) == ("host1", "e")
    before = aggregates.get("east")
    mark = marks(rig)
    changes: list[Callable[[], object]] = [
        lambda: aggregates.change("east", availability_zone="f"),
        lambda: aggregates.change("east", availability_zone=None),
        lambda: aggregates.remove("east", "host1"),
        lambda: aggregates.delete("east", force=True),
        lambda: aggregates.delete("east", force=True, dry_run=True),
    ]
    for refused in changes:
        with pytest.raises(errors.InvalidState, match="host1 would go from zone e to"):
            refused()
    assert (aggregates.get("east"), marks(rig)) == (before, mark)
    # Changes that leave its zone are allowed.
    aggregates.add("plain", "host1")
    aggregates.create("east-too", "host1", availability_zone="e")
    aggregates.remove("east", "host1")
    aggregates.add("east", "host2")
    with pytest.raises(errors.InvalidState):
        aggregates.remove("east-too", "host1")
    [[other]] = scheduler.select(select("r2", availability_zone="nova"))
    aggregates.add("nova", other.service_host, cell=CELLS.index(other.cell_uuid))
    rig.release(select("r1").instance_uuids[0])
    aggregates.remove("east-too", "host1")
    assert zones(rig)["host1"] == "nova"


def test_a_server_keeps_the_zone_of_its_host_whatever_type_a_put_gave_it(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("east", "host1", availability_zone="e")
    [[claimed]] = rig.scheduler().select(select("r1", availability_zone="e"))
    wanted = Store.wanted({node_uuid(1): {"VCPU": 1}}, claimed.consumer_generation, consumer_type="RESIDUE")
    [uuid] = select("r1").instance_uuids
    rig.placement.call(PutAllocations(request_id=rig.fresh(), consumer_uuid=uuid, wanted=wanted))
    with pytest.raises(errors.InvalidState, match="host1 would go from zone e to"):
        aggregates.change("east", availability_zone="f")


# --- Aggregates of providers ----------------------------------------------------------------------------------------


def test_the_node_of_a_host_is_in_the_aggregate_of_providers_as_long_as_the_host_is_a_member(
    rig: Rig, aggregates: Aggregates
) -> None:
    uuid = aggregates.create("ssd", "host1", "host2").uuid
    before = provider(rig, 1)
    assert (before.aggregates, provider(rig, 3).aggregates) == ((uuid,), ())
    aggregates.remove("ssd", "host1")
    after = provider(rig, 1)
    assert (after.aggregates, after.generation) == ((), before.generation + 1)
    assert provider(rig, 2).aggregates == (uuid,)


def test_an_aggregate_of_providers_can_become_a_host_aggregate(rig: Rig, aggregates: Aggregates) -> None:
    uuid = ids.fresh()
    for number in (1, 3):
        _set_aggregates(rig, number, uuid)
    before = provider(rig, 1)
    assert aggregates.create("shared", "host1", "host2", uuid=uuid).uuid == uuid
    assert provider(rig, 1) == before
    # A node whose host is no member stays in it.
    aggregates.delete("shared", force=True)
    assert [provider(rig, number).aggregates for number in (1, 2, 3)] == [(), (), (uuid,)]


def _set_aggregates(rig: Rig, number: int, *uuids: str) -> tuple[str, ...]:
    message = SetAggregates(request_id=rig.fresh(), uuid=node_uuid(number), aggregates=uuids)
    return rig.placement.call(message).aggregates


def _report_aggregates(rig: Rig, number: int, *uuids: str) -> int:
    known = provider(rig, number)
    one = ProviderReport(uuid=known.uuid, name=known.name, inventories=known.inventories, aggregates=uuids)
    rig.report_providers(one)
    return provider(rig, number).generation - known.generation


def test_replacing_the_aggregates_of_a_node_keeps_the_aggregates_of_its_host(rig: Rig, aggregates: Aggregates) -> None:
    uuid, own = aggregates.create("ssd", "host1").uuid, ids.fresh()
    assert _set_aggregates(rig, 1, own) == tuple(sorted([uuid, own]))
    assert _set_aggregates(rig, 1) == (uuid,)
    assert _set_aggregates(rig, 2, own) == (own,)
    # A report with the same aggregates changes nothing, however often it is repeated.
    assert _report_aggregates(rig, 1) == 0
    assert _report_aggregates(rig, 1, own) == 1
    assert _report_aggregates(rig, 1, own) == 0
    assert provider(rig, 1).aggregates == tuple(sorted([uuid, own]))
    aggregates.remove("ssd", "host1")
    assert provider(rig, 1).aggregates == (own,)


@pytest.mark.parametrize("how", ["created", "reported"])
def test_a_provider_that_is_deleted_and_created_again_is_in_the_aggregates_of_its_host(
    rig: Rig, aggregates: Aggregates, how: str
) -> None:
    uuid = aggregates.create("ssd", "host1").uuid
    gone = provider(rig, 1)
    rig.delete_provider(gone.uuid)
    # A host without a provider needs no repair, and can join and leave aggregates.
    assert aggregates.sync() == []
    aggregates.create("other", "host1")
    aggregates.remove("other", "host1")
    if how == "created":
        message = CreateResourceProvider(request_id=rig.fresh(), uuid=gone.uuid, name=gone.name)
        rig.placement.call(message)
    else:
        one = ProviderReport(uuid=gone.uuid, name=gone.name, inventories={"VCPU": Inventory(total=1)}, aggregates=())
        child = ProviderReport(uuid=ids.fresh(), name="child", parent_provider_uuid=gone.uuid)
        rig.report_providers(one, child)
    assert provider(rig, 1).aggregates == (uuid,)


def test_a_deleted_host_leaves_its_aggregates_and_a_new_host_of_its_name_is_in_none(
    rig: Rig, aggregates: Aggregates
) -> None:
    aggregates.create("ssd", "host1", "host2", disk="ssd")
    retire(rig, 1)
    assert members(aggregates.get("ssd")) == [(CELLS[0], "host2")]
    rig.add_hosts([1])
    assert (metadata(rig, "host1"), provider(rig, 1).aggregates) == ({}, ())


def test_a_second_node_of_a_host_joins_the_aggregates_of_the_host(rig: Rig, aggregates: Aggregates) -> None:
    uuid = aggregates.create("bare", "host1", "host2", disk="ssd").uuid
    nodes = [report(number, service_host="host1") for number in (7, 8)]
    for number in (7, 8):
        inventories = {"VCPU": Inventory(total=1)}
        one = ProviderReport(uuid=node_uuid(number), name=f"host{number}", inventories=inventories)
        # The provider of one node is created before the node is reported, and the other one after.
        if number == 8:
            rig.report(nodes, ["host1"])
        rig.report_providers(one)
    assert provider(rig, 7).aggregates == provider(rig, 8).aggregates == (uuid,)
    of_host = [row for row in all_rows(rig) if row.service_host == "host1"]
    assert [row.metadata for row in of_host] == [{"disk": frozenset({"ssd"})}] * 3
    aggregates.remove("bare", "host1")
    assert [provider(rig, number).aggregates for number in (1, 2, 7, 8)] == [(), (uuid,), (), ()]


def test_rows_that_are_missing_among_providers_are_listed_and_restored(rig: Rig, aggregates: Aggregates) -> None:
    created = aggregates.create("ssd", "host1", "host2")
    assert aggregates.sync() == []
    rig.database.write(lambda connection: connection.execute(provider_aggregates.delete()))
    mark = marks(rig)
    missing = aggregates.sync(dry_run=True)
    assert [(one.aggregate, one.aggregate_uuid, one.service_host, one.provider_uuid) for one in missing] == [
        ("ssd", created.uuid, "host1", node_uuid(1)),
        ("ssd", created.uuid, "host2", node_uuid(2)),
    ]
    assert provider(rig, 1).aggregates == ()
    assert aggregates.sync() == missing
    assert provider(rig, 1).aggregates == provider(rig, 2).aggregates == (created.uuid,)
    assert told_since(rig, mark) == ({node_uuid(1), node_uuid(2)}, set())
    assert aggregates.sync() == []


def test_a_request_goes_to_members_of_the_aggregate_that_it_names(rig: Rig, aggregates: Aggregates) -> None:
    uuid = aggregates.create("ssd", "host2").uuid
    scheduler = rig.scheduler()

    def chosen(request_id: str) -> str:
        groups = {"": ResourceGroup(resources={"VCPU": 1}, member_of=((uuid,),))}
        [[claimed]] = scheduler.select(select(request_id, groups=groups))
        return claimed.service_host

    assert chosen("r1") == "host2"
    aggregates.add("ssd", "host1")
    aggregates.remove("ssd", "host2")
    # The view follows the change feed before a decision.
    assert chosen("r2") == "host1"
