"""Test that a view which follows the change feed has the number of servers of each host, on SQLite and on MariaDB."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from sqlalchemy import select as query
from support.scheduler.builders import funnel, select
from support.scheduler.moving_builders import accept, consumer, end, instance_of, move
from support.scheduler.rig import OneScheduler, Rig, node_uuid, report

from filters.different_host import DifferentHostFilter
from filters.num_instances import NumInstancesFilter
from filters.same_host import SameHostFilter
from moorage import errors
from moorage.ids import derived
from moorage.messages import (
    DeleteAllocations,
    GetResourceProvider,
    PutAllocations,
    SelectDestinations,
    SwapClaim,
)
from moorage.model import ConsumerAllocations, Inventory, MoveKind, ProviderAmounts, ProviderReport, Selection
from placement_store.db.names import sync
from placement_store.schema import consumers, resource_providers
from scheduler.decide.funnel import Funnel

HOSTS = range(6)
#: These have all inventories on a child provider: a claim does not touch the root provider of the host.
NESTED = range(3, 6)


def add_hosts(rig: Rig) -> None:
    rig.add_hosts([number for number in HOSTS if number not in NESTED])
    held = {"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768), "DISK_GB": Inventory(total=500)}
    providers = []
    for number in NESTED:
        child = derived("rig", "child", number)
        providers += [
            ProviderReport(uuid=node_uuid(number), name=f"host{number}"),
            ProviderReport(uuid=child, name=f"child{number}", parent_provider_uuid=node_uuid(number), inventories=held),
        ]
    rig.report_providers(*providers)
    rig.report([report(number) for number in NESTED], [f"host{number}" for number in NESTED])


def shown(scheduler: OneScheduler, *, follow: bool = True) -> dict[str, int]:
    """Return the number of servers of each host with servers in the view of a scheduler."""
    if follow:
        scheduler.follow()
    snapshot = scheduler.host_cache.snapshot()
    assert [snapshot.host(row).instances for row in range(len(snapshot))] == snapshot.instances.tolist()
    counts = zip(snapshot.hosts, snapshot.instances.tolist(), strict=True)
    return {host.compute_node_uuid: count for host, count in counts if count}


def recounted(rig: Rig) -> dict[str, int]:
    table = consumers.c
    rows = rig.database.read(
        lambda connection: connection.execute(
            query(table.consumer_type, table.claim_id, resource_providers.c.uuid).join_from(
                consumers, resource_providers, resource_providers.c.id == table.root_provider_id
            )
        ).all()
    )
    return dict(Counter(row.uuid for row in rows if row.consumer_type == "INSTANCE" and row.claim_id is not None))


@dataclass
class Player:
    """Sends at random the requests of conductors and operators about servers, through two schedulers."""

    rig: Rig
    random: Random
    schedulers: list[OneScheduler]
    placed: dict[str, Selection] = field(default_factory=dict)
    #: By server, the request that moves it, its source and its destination.
    moving: dict[str, tuple[str, Selection, Selection]] = field(default_factory=dict)
    spare: dict[str, Selection] = field(default_factory=dict)

    def step(self) -> str:
        actions: list[Callable[[], None]] = [
            self.build,
            self.build,
            self.move,
            self.delete,
            self.swap,
            self.end,
            self.put,
        ]
        action = self.random.choice(actions)
        try:
            action()
        except (errors.NoValidHost, errors.CapacityExceeded, errors.CannotCarryOver) as fault:
            return f"{action.__name__}: {fault}"
        return action.__name__

    def ask(self, message: SelectDestinations) -> list[list[Selection]]:
        return self.random.choice(self.schedulers).select(message)

    def build(self) -> None:
        request_id, count = self.rig.fresh(), self.random.randint(1, 3)
        message = select(request_id, count, num_alternates=1, vcpus=self.random.randint(1, 4))
        for uuid, (claimed, *others) in zip(message.instance_uuids, self.ask(message), strict=True):
            self.placed[uuid] = claimed
            if others:
                self.spare[uuid] = others[0]
            if self.random.random() < 0.7:
                accept(self.rig, uuid, claimed)

    def settled(self) -> list[str]:
        return sorted(self.placed.keys() - self.moving.keys())

    def move(self) -> None:
        if not self.settled():
            return
        uuid = self.random.choice(self.settled())
        source = self.placed[uuid]
        accept(self.rig, uuid, source)
        kinds: list[MoveKind] = ["cold-migration", "resize", "evacuation"]
        request_id, kind = self.rig.fresh(), self.random.choice(kinds)
        [[claimed]] = self.ask(move(request_id, uuid, source, kind, vcpus=self.random.randint(1, 4)))
        accept(self.rig, uuid, claimed)
        self.moving[uuid] = request_id, source, claimed
        self.placed[uuid] = claimed
        self.spare.pop(uuid, None)

    def end(self) -> None:
        if not self.moving:
            return
        uuid = self.random.choice(sorted(self.moving))
        request_id, source, claimed = self.moving.pop(uuid)
        outcome = self.random.choice(["confirm", "revert"])
        end(self.rig, request_id, uuid, outcome, source, claimed)
        # Its generation is unknown here from now on, so it is not moved again.
        self.placed.pop(uuid)

    def delete(self) -> None:
        if not self.settled():
            return
        uuid = self.random.choice(self.settled())
        del self.placed[uuid]
        self.rig.placement.call(
            DeleteAllocations(
                request_id=self.rig.fresh(),
                consumer_uuid=uuid,
                for_good=self.random.random() < 0.5,
                leave_residue=self.random.random() < 0.5,
            )
        )

    def swap(self) -> None:
        """Fall back to the alternate, as after a failed build; the failed one may leave a residue."""
        candidates = [uuid for uuid in self.settled() if uuid in self.spare]
        if not candidates:
            return
        uuid = self.random.choice(candidates)
        failed, to = self.placed.pop(uuid), self.spare.pop(uuid)
        assert failed.claim_id is not None
        self.rig.placement.call(
            SwapClaim(
                request_id=self.rig.fresh(),
                consumer_uuid=uuid,
                claim_id=failed.claim_id,
                released=failed.allocation_request,
                claimed=to.allocation_request,
                root_provider_uuid=to.compute_node_uuid,
                leave_residue=True,
            )
        )

    def put(self) -> None:
        """Write the allocations of a server as another client: a claim without allocations on its host is cleared."""
        if not self.settled():
            return
        uuid = self.random.choice(self.settled())
        claimed = self.placed.pop(uuid)
        held = {} if self.random.random() < 0.5 else claimed.allocation_request.allocations
        wanted = ConsumerAllocations(
            allocations={provider: ProviderAmounts(resources=part.resources) for provider, part in held.items()},
            project_id="other",
            user_id="other",
            consumer_generation=consumer(self.rig, uuid).generation,
            consumer_type=self.random.choice(["INSTANCE", "VOLUME"]),
        )
        self.rig.placement.call(PutAllocations(request_id=self.rig.fresh(), consumer_uuid=uuid, wanted=wanted))


@pytest.mark.parametrize("seed", range(2))
def test_after_each_random_step_all_views_have_the_recounted_numbers_of_servers(rig: Rig, seed: int) -> None:
    sync(rig.database)
    add_hosts(rig)
    schedulers = [rig.scheduler(), rig.scheduler()]
    player = Player(rig, Random(seed), schedulers)
    done = []
    for _ in range(30):
        done.append(player.step())
        expected = recounted(rig)
        for scheduler in schedulers:
            assert shown(scheduler) == expected, done
            assert scheduler.drifted() == ()
        assert {host.compute_node_uuid: host.instances for host in rig.hosts() if host.instances} == expected
    assert shown(rig.scheduler()) == expected


def test_numbers_that_the_feed_has_not_named_are_found_by_a_comparison(rig: Rig) -> None:
    sync(rig.database)
    add_hosts(rig)
    here, there = rig.scheduler(), rig.scheduler()
    for number in range(12):
        there.select(select(f"r{number}", vcpus=2))
    rig.lose_changes()
    assert shown(here) == {}
    assert len(here.drifted()) == len(HOSTS)
    here.catch_up()
    assert shown(here) == recounted(rig)


def test_a_claim_counts_at_once_and_once_in_the_view_of_its_scheduler(rig: Rig) -> None:
    sync(rig.database)
    add_hosts(rig)
    scheduler = rig.scheduler(max_age=3600.0)
    claimed = scheduler.select(select("r1", count=8))
    assert shown(scheduler, follow=False) == recounted(rig)
    [source] = claimed[0]
    uuid = instance_of("r1")
    accept(rig, uuid, source)
    [[moved]] = scheduler.select(move("m1", uuid, source, "resize", force_hosts=(source.service_host,)))
    assert moved.compute_node_uuid == source.compute_node_uuid
    assert shown(scheduler, follow=False) == recounted(rig), "the server is already counted on this host"


def test_servers_count_on_a_host_that_only_pools_of_other_trees_serve(rig: Rig) -> None:
    sync(rig.database)
    shelf, pool = derived("rig", "shelf"), derived("rig", "pool")
    held = {"VCPU": Inventory(total=16), "MEMORY_MB": Inventory(total=32768), "DISK_GB": Inventory(total=500)}
    shares = ("MISC_SHARES_VIA_AGGREGATE",)
    rig.report_providers(
        ProviderReport(uuid=pool, name="pool", inventories=held, traits=shares, aggregates=(shelf,)),
        *(ProviderReport(uuid=node_uuid(number), name=f"host{number}", aggregates=(shelf,)) for number in (0, 1)),
    )
    rig.report([report(number) for number in (0, 1)], ["host0", "host1"])
    here, there = rig.scheduler(), rig.scheduler()
    generations = [rig.placement.call(GetResourceProvider(uuid=node_uuid(number))).generation for number in (0, 1)]

    def all_show() -> dict[str, int]:
        assert shown(here) == shown(there) == shown(rig.scheduler()) == recounted(rig)
        return shown(there)

    [[source]] = here.select(select("r1"))
    assert all_show() == {source.compute_node_uuid: 1}
    accept(rig, instance_of("r1"), source)
    [[claimed]] = here.select(move("m1", instance_of("r1"), source))
    assert all_show() == {claimed.compute_node_uuid: 1}
    end(rig, "m1", instance_of("r1"), "confirm", source, claimed)
    rig.release(instance_of("r1"))
    assert all_show() == {}
    # The agents of the hosts need not read the providers again.
    assert generations == [
        rig.placement.call(GetResourceProvider(uuid=node_uuid(number))).generation for number in (0, 1)
    ]
    # Nothing is allocated from the host itself, and yet it cannot be deleted before the server.
    [[claimed]] = here.select(select("r2"))
    with pytest.raises(errors.ProviderInUse):
        rig.delete_provider(claimed.compute_node_uuid)
    assert all_show() == {claimed.compute_node_uuid: 1}
    rig.release(instance_of("r2"))
    rig.delete_provider(claimed.compute_node_uuid)
    assert all_show() == {}


def test_servers_of_one_request_count_for_the_limit_of_servers_on_a_host(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(plugins=funnel(num_instances=NumInstancesFilter({"max_instances_per_host": 2})))
    placed = Counter(claimed.service_host for [claimed] in scheduler.select(select("r1", count=6)))
    assert set(placed.values()) == {2}
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("r2"))
    rig.release(instance_of("r1"), for_good=True)
    scheduler.select(select("r3"))


# --- Servers named in hints -------------------------------------------------------------------------------------------


def with_hints() -> Funnel:
    return funnel(same_host=SameHostFilter({}), different_host=DifferentHostFilter({}))


def test_hints_place_servers_on_the_same_host_as_others_or_on_another_one(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(plugins=with_hints())
    here = scheduler.select(select("a"))[0][0].service_host
    uuids = f'["{instance_of("a")}"]'
    apart = {
        scheduler.select(select(f"apart{number}", scheduler_hints={"different_host": uuids}))[0][0].service_host
        for number in range(4)
    }
    assert here not in apart
    together = scheduler.select(select("together", count=2, scheduler_hints={"same_host": instance_of("a")}))
    assert {claimed.service_host for [claimed] in together} == {here}
    everywhere = ",".join(instance_of(name) for name in ("a", "apart0", "apart1", "apart2", "apart3"))
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("none", scheduler_hints={"same_host": uuids, "different_host": everywhere}))


def test_a_moving_server_counts_on_both_of_its_hosts_until_its_move_has_ended(rig: Rig) -> None:
    rig.add_hosts(range(3))
    scheduler = rig.scheduler(plugins=with_hints())
    uuid = instance_of("a")
    [[source]] = scheduler.select(select("a"))
    accept(rig, uuid, source)
    [[claimed]] = scheduler.select(move("m", uuid, source))
    accept(rig, uuid, claimed)

    def apart(request_id: str) -> set[str]:
        found = scheduler.select(select(request_id, num_alternates=5, scheduler_hints={"different_host": uuid}))[0]
        return {one.service_host for one in found}

    assert apart("one") == {"host0", "host1", "host2"} - {source.service_host, claimed.service_host}
    end(rig, "m", uuid, "confirm", source, claimed)
    assert apart("two") == {"host0", "host1", "host2"} - {claimed.service_host}


def test_a_hint_with_an_unplaced_server_excludes_no_host_or_all_hosts(rig: Rig) -> None:
    rig.add_hosts(range(2))
    scheduler = rig.scheduler(plugins=with_hints())
    nobody = derived("tests", "nobody")
    scheduler.select(select("a", scheduler_hints={"different_host": nobody}))
    with pytest.raises(errors.NoValidHost):
        scheduler.select(select("b", scheduler_hints={"same_host": nobody}))


@pytest.mark.parametrize("hint", ["same_host", "different_host"])
def test_an_invalid_hint_is_refused_with_its_path_and_claims_nothing(rig: Rig, hint: str) -> None:
    rig.add_hosts([0])
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.scheduler().select(select("a", scheduler_hints={hint: "not a uuid"}))
    assert caught.value.path == f"$.scheduler_hints.{hint}"
    assert recounted(rig) == {}
