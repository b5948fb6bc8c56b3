"""Test properties of server groups, on SQLite: rules are kept, and refuse only writes that would break them."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.placement_store.builders import Store
from support.placement_store.group_builders import Groups, Member

from moorage import errors
from moorage.db.database import Database
from moorage.model import GroupPolicy, ServerGroup
from placement_store.schema import MAIN

HOSTS = range(3)
#: The operation, the position of its member, and the positions of its hosts.
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["claim", "claim", "claim all", "swap", "move", "move", "confirm", "revert", "release", "delete"]
        ),
        st.integers(0, 5),
        st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=25,
)
rules = st.sampled_from([("anti-affinity", 1), ("anti-affinity", 2), ("affinity", 1)])
#: Hosts whose forced-down state changes after a step.
flips = st.dictionaries(st.integers(0, 24), st.sampled_from(HOSTS), max_size=4)

Rule = tuple[GroupPolicy, int]
Act = tuple[str, int, list[int]]
#: Members, and the hosts that they get.
Gains = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('groups')}/main.sqlite", "main")
    MAIN.upgrade(database)
    yield Store(database)
    database.close()


class Story:
    """Places, moves and deletes members of a group; compares the outcome of each step with the rule."""

    def __init__(self, store: Store, group: ServerGroup) -> None:
        store.empty()
        self.groups = Groups(store)
        self.group = group
        self.hosts = [self.groups.host() for _ in HOSTS]
        self.down: set[str] = set()

    def flip(self, host: int) -> None:
        uuid = self.hosts[host]
        self.down ^= {uuid}
        self.groups.force_down(uuid, down=uuid in self.down)

    def step(self, act: str, which: int, hosts: Sequence[int]) -> None:
        uuids = [self.hosts[host] for host in hosts]
        if act == "claim all":
            self.expect([(f"new {n}", host) for n, host in enumerate(uuids)], lambda: self.claim(uuids))
        elif act == "claim" or not self.groups.members:
            self.expect([("new", uuids[0])], lambda: self.claim(uuids[:1]))
        else:
            member = list(self.groups.members.values())[which % len(self.groups.members)]
            self.change(act, member, uuids[0])

    def claim(self, hosts: Sequence[str]) -> None:
        self.groups.claim_all(self.group, hosts)

    def change(self, act: str, member: Member, host: str) -> None:
        """Carry out an operation on one member, or a similar one that is possible in its state."""
        if not self.groups.store.held(member.uuid):
            act = "return" if act != "delete" else act
        elif member.migration is not None:
            act = {"move": "swap", "release": "revert"}.get(act, act)
        elif act in ("confirm", "revert"):
            act = "move"
        event(act)
        moved = [(member.uuid, host)]
        if act == "return":
            self.expect(moved, lambda: self.groups.claim(self.group, host, member.uuid))
        elif act == "swap":
            self.expect(moved, lambda: self.groups.swap(member, host, guest_gone=True))
        elif act == "move":
            self.expect(moved, lambda: self.groups.move(member, host))
        else:
            # An operation that only releases is never refused.
            getattr(self.groups, act)(member)

    def expect(self, gains: Gains, act: Callable[[], object]) -> None:
        allowed = self.allows(gains)
        try:
            act()
        except errors.GroupRuleRefused:
            event("refused")
            assert not allowed
        else:
            assert allowed

    def allows(self, gains: Gains) -> bool:
        """Return whether the rule allows members to get these hosts, even for a moment."""
        places = self.groups.places()
        new = [(member, host) for member, host in gains if host not in places.get(member, set())]
        after = {member: set(there) for member, there in places.items()}
        for member, host in gains:
            after.setdefault(member, set()).add(host)
        for member, host in new:
            others = {other: there for other, there in after.items() if other != member}
            if self.group.policy == "affinity":
                if any(there - {host} - self.down for there in others.values()):
                    return False
            elif sum(host in there for there in others.values()) >= self.group.max_server_per_host:
                return False
        return True

    def assert_kept(self) -> None:
        """Assert that the rule is kept; an affinity rule may be broken after a forced-down host has returned."""
        there = self.groups.on_hosts()
        if self.group.policy == "anti-affinity":
            assert all(len(members) <= self.group.max_server_per_host for members in there.values())
        elif len(there) > 1:
            assert len(set.union(*there.values())) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rule=rules, acts=steps)
def test_no_sequence_of_writes_breaks_a_group_rule(store: Store, rule: Rule, acts: list[Act]) -> None:
    story = Story(store, Groups.group(*rule))
    for act in acts:
        story.step(*act)
        story.assert_kept()
    assert store.is_sound()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rule=rules, acts=steps, flips=flips)
def test_only_writes_that_would_break_a_group_rule_are_refused(
    store: Store, rule: Rule, acts: list[Act], flips: dict[int, int]
) -> None:
    story = Story(store, Groups.group(*rule))
    for number, act in enumerate(acts):
        story.step(*act)
        if number in flips:
            story.flip(flips[number])
    assert store.is_sound()
