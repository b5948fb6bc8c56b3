"""Test members of server groups that are moved, evacuated, shelved and unshelved: the rule holds after each step."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from msgspec import structs
from support.conductor.order_table import give
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.room import Room, rooms_of

from moorage import errors, ids
from moorage.messages import BuildInstances, GetAllocations, ListMigrations, Ordered
from moorage.model import GroupPolicy, ServerGroup

ROLES = {"source", "destination", "alternate"}


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    with TroublesomeCloud(plan("combine", hosts=3)) as cloud:
        [room] = rooms_of(cloud, Troubles())
        yield room


@dataclass
class Group:
    """A server group in a room, and its members."""

    room: Room
    group: ServerGroup
    members: list[str] = field(default_factory=list)

    def build(self, *forced: str, state: str = "active") -> str:
        """Build one more member, on a host of this role or on any."""
        uuid = ids.fresh()
        spec = structs.replace(self.room.spec(*forced), server_group=self.group)
        self.room.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(uuid,)))
        self.members.append(uuid)
        self.becomes(uuid, state)
        return uuid

    def becomes(self, uuid: str, state: str) -> None:
        """Wait until a member is in a state without pending operations, and verify the rule of the group."""
        self.room.becomes(uuid, state)
        self.room.until(lambda: not self.room.seen(uuid).pending, "all to be done")
        self.verify()

    def give(self, order: str, uuid: str, state: str, host: str | None = None) -> None:
        """Send an order, and wait for the resulting state of the member."""
        give(self.room, order, uuid, None if host is None else self.room.hosts[host])
        self.becomes(uuid, state)

    def refuses(self, order: str, uuid: str, host: str | None = None) -> str:
        """Send an order that fails; return the reason."""
        before = self.on(uuid)
        ordered = give(self.room, order, uuid, None if host is None else self.room.hosts[host])
        assert isinstance(ordered, Ordered)
        failed = self.room.migration_becomes(ordered.migration_uuid, "failed")
        self.verify()
        assert self.on(uuid) == before
        return str(failed.reason)

    def on(self, uuid: str) -> set[str]:
        """Return the hosts of which a member or its migration holds something."""
        migrations = [one.uuid for one in self.room.ask(ListMigrations(instance_uuid=uuid))]
        found: set[str] = set()
        for consumer in (uuid, *migrations):
            try:
                held = self.room.placement.call(GetAllocations(consumer_uuid=consumer)).allocations
            except errors.ConsumerNotFound:
                continue
            found |= {role for role, node in self.room.nodes.items() if node in held}
        return found

    def verify(self) -> None:
        places = [there for uuid in self.members if (there := self.on(uuid))]
        if self.group.policy == "anti-affinity":
            assert sum(map(len, places)) == len(set().union(*places)), places
        elif len(places) > 1:
            assert len(set().union(*places)) == 1, places

    def clear(self) -> None:
        for role in ROLES:
            self.room.force_down(role, down=False)
        for uuid in self.members:
            self.room.cloud.faults.forget(uuid)
            give(self.room, "delete", uuid)
        for uuid in self.members:
            self.room.becomes(uuid, "deleted")
            self.room.clear(uuid)
        # A cleaning that ends during the next test would free room there.
        self.room.until(lambda: not self.room.pending(), "all to be cleaned up")


def group_of(room: Room, policy: GroupPolicy) -> Iterator[Group]:
    group = Group(room, ServerGroup(uuid=ids.fresh(), policy=policy))
    yield group
    group.clear()


@pytest.fixture
def apart(room: Room) -> Iterator[Group]:
    yield from group_of(room, "anti-affinity")


@pytest.fixture
def together(room: Room) -> Iterator[Group]:
    yield from group_of(room, "affinity")


# --- Anti-affinity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "stays_on", "free"), [("confirm", "alternate", "source"), ("revert", "source", "alternate")]
)
def test_a_member_that_moves_counts_on_both_hosts_until_its_move_ends(
    apart: Group, outcome: str, stays_on: str, free: str
) -> None:
    first, second = apart.build("source"), apart.build("destination")
    assert "group" in apart.refuses("migrate", first, "destination")
    apart.give("migrate", first, "moved")
    assert (apart.on(first), apart.on(second)) == ({"source", "alternate"}, {"destination"})
    apart.build(state="error")

    apart.give(outcome, first, "active")

    assert apart.on(first) == {stays_on}
    assert apart.on(apart.build()) == {free}


def test_a_member_whose_only_destination_fails_stays_where_it_is(apart: Group) -> None:
    first, _second = apart.build("source"), apart.build("destination")
    apart.room.misbehave("failing", first, "alternate")

    apart.refuses("live-migrate", first)

    assert apart.on(first) == {"source"}
    assert apart.on(apart.build()) == {"alternate"}


def test_an_evacuated_member_goes_to_a_free_host_and_its_residue_does_not_count(
    apart: Group,
) -> None:
    room = apart.room
    first, _second = apart.build("source"), apart.build("destination")
    room.misbehave("silent", first, "source")
    room.force_down("source")

    apart.give("evacuate", first, "active")

    assert apart.on(first) == {"alternate"}
    apart.build(state="error")
    room.force_down("source", down=False)
    assert apart.on(apart.build()) == {"source"}


def test_a_shelved_member_does_not_count_and_is_unshelved_only_on_a_free_host(apart: Group) -> None:
    first, _second = apart.build("source"), apart.build("destination")
    apart.give("shelve", first, "shelved")
    third = apart.build("source")
    apart.give("unshelve", first, "active")
    assert apart.on(first) == {"alternate"}
    apart.give("shelve", first, "shelved")
    apart.build("alternate")

    apart.give("unshelve", first, "shelved")

    assert apart.room.show(first).explanation is not None
    apart.give("delete", third, "deleted")
    apart.give("unshelve", first, "active")
    assert apart.on(first) == {"source"}


# --- Affinity ---------------------------------------------------------------------------------------------------------


def test_a_single_member_can_move_and_others_can_join_it_only_after_the_move(together: Group) -> None:
    first = together.build("source")
    together.give("migrate", first, "moved")
    assert together.on(first) == {"source", "destination"}
    together.build(state="error")

    together.give("confirm", first, "active")

    assert together.on(together.build()) == {"destination"}


def test_one_of_several_members_cannot_move_alone(together: Group) -> None:
    first, second = together.build("source"), together.build()
    assert together.on(second) == {"source"}

    for order in ("migrate", "live-migrate", "resize"):
        together.refuses(order, first, "destination")

    together.give("delete", second, "deleted")
    together.give("live-migrate", first, "active", "destination")
    assert together.on(first) == {"destination"}


def test_members_on_a_dead_host_are_evacuated_to_one_host(together: Group) -> None:
    room = together.room
    first, second = together.build("source"), together.build()
    room.force_down("source")
    # Members that are still on the dead host do not count.
    together.members = [first]
    together.give("evacuate", first, "active")
    together.members = [first, second]

    together.give("evacuate", second, "active")

    assert together.on(first) == together.on(second) == {"destination"}


def test_a_shelved_member_is_unshelved_on_the_host_of_the_others(together: Group) -> None:
    first, _second = together.build("source"), together.build()
    together.give("shelve", first, "shelved")
    together.room.fill("source")

    together.give("unshelve", first, "shelved")

    together.room.make_room()
    together.give("unshelve", first, "active")
    assert together.on(first) == {"source"}
