"""Test server groups: the hosts on which members may be placed, moved and deleted."""

from collections.abc import Iterable
from functools import partial

import pytest
from sqlalchemy import Connection
from support.placement_store.builders import Store
from support.placement_store.group_builders import ONE, Groups

from moorage import errors, ids
from moorage.db.script import Script
from moorage.messages import CreateServerGroup, DeleteServerGroup, GetServerGroup, ListServerGroups
from moorage.model import GroupPolicy, ServerGroup
from placement_store.claims.claim import claim
from placement_store.schema import consumer_groups, consumers
from placement_store.server_groups.rows import GroupRow, OccupiedRoot, bind

REFUSED = errors.GroupRuleRefused


@pytest.fixture
def groups(store: Store) -> Groups:
    return Groups(store)


@pytest.fixture
def hosts(groups: Groups) -> tuple[str, str, str]:
    one, two, three = (groups.host() for _ in range(3))
    return one, two, three


def reason(caught: pytest.ExceptionInfo[errors.GroupRuleRefused]) -> str:
    return caught.value.reason


# --- Groups -----------------------------------------------------------------------------------------------------------


def test_a_claim_creates_the_group_that_it_names(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity", 2)

    member = groups.claim(group, hosts[0])

    shown = groups.shown(group)
    assert (shown.group, shown.name, shown.project_id) == (group, None, None)
    assert shown.members == {member.uuid: hosts[0]}


def test_a_claim_with_another_rule_for_an_existing_group_is_refused(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity", 2)
    groups.claim(group, hosts[0])

    for policy, most in (("affinity", 2), ("anti-affinity", 3)):
        other = ServerGroup(uuid=group.uuid, policy=policy, max_server_per_host=most)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest) as caught:
            groups.claim(other, hosts[1])
        assert caught.value.path == "$.request_spec.server_group"
    assert len(groups.shown(group).members) == 1


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity", "soft-anti-affinity"])
def test_a_claim_whose_group_is_deleted_before_it_is_locked_is_refused_whole(
    groups: Groups, hosts: list[str], monkeypatch: pytest.MonkeyPatch, policy: GroupPolicy
) -> None:
    def bind_and_lose(script: Script, named: Iterable[ServerGroup], known: None) -> dict[str, GroupRow]:
        found = bind(script, named, known)
        script.connection.execute(consumer_groups.delete())
        return found

    group = groups.group(policy)
    monkeypatch.setattr("placement_store.claims.claim.bind", bind_and_lose)
    with pytest.raises(errors.ClaimContention):
        groups.claim(group, hosts[0])
    monkeypatch.undo()
    assert not groups.store.database.read(lambda connection: connection.execute(consumers.select()).all())
    member = groups.claim(group, hosts[0])
    assert groups.shown(group).members == {member.uuid: hosts[0]}


def known_claim(groups: Groups, group: ServerGroup, host: str, known: dict[str, GroupRow]) -> str:
    """Claim for a new member, with the rows of groups as a decision has read them; return the member's uuid."""
    new = groups.store.new_claim(ids.fresh(), {host: ONE}, group=group)
    groups.store.database.write(lambda connection: claim(connection, [new], groups.store.names, groups=known))
    return new.consumer_uuid


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity", "soft-anti-affinity"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
def test_a_claim_with_the_row_of_a_group_that_was_deleted_since_it_was_read_is_refused_whole(
    groups: Groups, hosts: list[str], policy: GroupPolicy, again: bool
) -> None:
    group = groups.group(policy)
    groups.dispatcher.call(CreateServerGroup(request_id=ids.fresh(), group=group, name="db", project_id="p"))
    known = groups.store.database.read(lambda connection: bind(connection, [group]))
    groups.dispatcher.call(DeleteServerGroup(request_id=ids.fresh(), uuid=group.uuid))
    if again:
        groups.dispatcher.call(CreateServerGroup(request_id=ids.fresh(), group=group, name="db", project_id="p"))

    with pytest.raises(errors.ClaimContention):
        known_claim(groups, group, hosts[0], known)

    assert not groups.store.database.read(lambda connection: connection.execute(consumers.select()).all())
    member = known_claim(groups, group, hosts[0], {})
    assert groups.shown(group).members == {member: hosts[0]}


def test_a_claim_finds_a_group_that_its_decision_has_not_read_because_it_had_no_members(
    groups: Groups, hosts: list[str]
) -> None:
    group = groups.group("anti-affinity", 2)
    groups.dispatcher.call(CreateServerGroup(request_id=ids.fresh(), group=group, name="db", project_id="p"))

    members = {known_claim(groups, group, host, {}): host for host in hosts[:2]}

    assert (groups.shown(group).name, groups.shown(group).members) == ("db", members)
    other = ServerGroup(uuid=group.uuid, policy="affinity", max_server_per_host=2)
    known = groups.store.database.read(lambda connection: bind(connection, [group]))
    for read in ({}, known):
        with pytest.raises(errors.InvalidRequest, match="known with policy anti-affinity"):
            known_claim(groups, other, hosts[2], read)


def test_binding_a_group_again_returns_the_same_id(groups: Groups) -> None:
    group = groups.group()
    numbers = {groups.store.database.write(lambda connection: bind(connection, [group])[group.uuid]) for _ in range(3)}
    assert len(numbers) == 1


def test_a_group_is_created_listed_by_project_and_deleted_without_members(groups: Groups, hosts: list[str]) -> None:
    group, other = groups.group("affinity"), groups.group("soft-affinity")
    create = CreateServerGroup(request_id=ids.fresh(), group=group, name="db", project_id="p")
    created = groups.dispatcher.call(create)
    assert (created.group, created.name, created.project_id, created.members) == (group, "db", "p", {})
    assert groups.dispatcher.call(create) == created
    again = CreateServerGroup(request_id=ids.fresh(), group=group, name="db", project_id="p")
    with pytest.raises(errors.AlreadyExists):
        groups.dispatcher.call(again)
    member = groups.claim(other, hosts[0])

    listed = groups.dispatcher.call(ListServerGroups())
    assert [state.group for state in listed] == [other, group]
    assert listed[0].members == {member.uuid: hosts[0]}
    assert groups.dispatcher.call(ListServerGroups(project_id="p")) == [created]
    with pytest.raises(errors.InvalidState, match="1 members"):
        groups.dispatcher.call(DeleteServerGroup(request_id=ids.fresh(), uuid=other.uuid))
    groups.delete(member)
    for uuid in (group.uuid, other.uuid):
        groups.dispatcher.call(DeleteServerGroup(request_id=ids.fresh(), uuid=uuid))
        with pytest.raises(errors.ServerGroupNotFound):
            groups.dispatcher.call(GetServerGroup(uuid=uuid))
        with pytest.raises(errors.ServerGroupNotFound):
            groups.dispatcher.call(DeleteServerGroup(request_id=ids.fresh(), uuid=uuid))


# --- Anti-affinity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2])
def test_a_host_takes_at_most_the_configured_number_of_members_of_an_anti_affinity_group(
    groups: Groups, hosts: list[str], most: int
) -> None:
    group = groups.group("anti-affinity", most)
    first, *_ = [groups.claim(group, hosts[0]) for _ in range(most)]

    with pytest.raises(REFUSED) as caught:
        groups.claim(group, hosts[0])

    refused = caught.value
    assert (refused.group_uuid, refused.policy, refused.provider_uuid) == (group.uuid, "anti-affinity", hosts[0])
    assert reason(caught) == f"{most} of its members are there already, and at most {most} may be"
    groups.claim(groups.group("anti-affinity"), hosts[0])
    groups.claim(group, hosts[1])
    groups.delete(first)
    groups.claim(group, hosts[0])
    assert groups.store.is_sound()


def test_members_claimed_in_one_write_count_for_each_other(groups: Groups, hosts: list[str]) -> None:
    apart, near = groups.group("anti-affinity", 2), groups.group("affinity")

    for group, where in ((apart, [hosts[0]] * 3), (near, hosts)):
        with pytest.raises(REFUSED):
            groups.claim_all(group, where)
    assert groups.store.rows() == {}
    groups.claim_all(apart, [hosts[0], hosts[1], hosts[0]])
    groups.claim_all(near, [hosts[1]] * 3)
    assert sorted(len(there) for there in groups.on_hosts().values()) == [2, 4]


def test_a_swap_to_a_host_that_the_rule_forbids_is_refused_and_keeps_the_claim(
    groups: Groups, hosts: list[str]
) -> None:
    group = groups.group("anti-affinity")
    groups.claim(group, hosts[0])
    member = groups.claim(group, hosts[1])

    with pytest.raises(REFUSED):
        groups.swap(member, hosts[0])

    found = groups.store.consumer(member.uuid)
    assert (found.claim_id, found.root_provider_uuid) == (member.claim_id, hosts[1])
    groups.swap(member, hosts[2])
    groups.claim(group, hosts[1])


def test_a_moving_member_of_an_anti_affinity_group_counts_on_both_hosts(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity")
    member = groups.claim(group, hosts[0])

    groups.move(member, hosts[1])

    for host in hosts[:2]:
        with pytest.raises(REFUSED):
            groups.claim(group, host)
    assert groups.shown(group).members == {member.uuid: hosts[1]}
    groups.revert(member)
    groups.claim(group, hosts[1])
    groups.move(member, hosts[2])
    groups.confirm(member)
    groups.claim(group, hosts[0])


def test_a_member_that_falls_back_to_its_source_counts_once_there(groups: Groups, hosts: list[str]) -> None:
    for policy in ("anti-affinity", "affinity"):
        member = groups.claim(groups.group(policy), hosts[0])
        groups.move(member, hosts[1])
        groups.swap(member, hosts[0])
        assert groups.places()[member.uuid] == {hosts[0]}
        groups.confirm(member)


@pytest.mark.parametrize("released_first", [True, False])
def test_a_member_with_only_migrations_left_is_shown_on_a_host_of_one_of_them(
    groups: Groups, hosts: list[str], released_first: bool
) -> None:
    group, instance = groups.group("anti-affinity", 2), ids.fresh()
    migrations = [groups.claim(group, host).uuid for host in hosts[:2]]
    for uuid in migrations:
        is_released = (uuid == migrations[0]) is released_first
        values = {"migration_of": instance, "root_provider_id": None} if is_released else {"migration_of": instance}
        statement = consumers.update().where(consumers.c.uuid == uuid).values(**values)
        groups.store.database.write(partial(Connection.execute, statement=statement))

    assert groups.shown(group).members == {instance: hosts[1 if released_first else 0]}


@pytest.mark.parametrize("policy", ["anti-affinity", "affinity"])
def test_an_instance_and_its_migration_on_one_host_count_as_one_member(
    groups: Groups, hosts: list[str], policy: GroupPolicy
) -> None:
    group = groups.group(policy, 2)
    member, other = groups.claim(group, hosts[0]), groups.claim(group, hosts[0])

    groups.move(member, hosts[0])
    groups.move(other, hosts[0])

    assert groups.occupancy(group) == {hosts[0]: OccupiedRoot(2, forced_down=False)}
    groups.revert(member)
    groups.confirm(other)
    assert groups.store.held(member.uuid) == groups.store.held(other.uuid) == {hosts[0]: ONE}


def test_members_on_a_forced_down_host_still_count_for_anti_affinity(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity")
    groups.claim(group, hosts[0])
    groups.force_down(hosts[0])
    with pytest.raises(REFUSED):
        groups.claim(group, hosts[0])


# --- Affinity ---------------------------------------------------------------------------------------------------------


def test_a_new_member_of_an_affinity_group_must_join_its_host(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("affinity")
    first = groups.claim(group, hosts[0])
    second = groups.claim(group, hosts[0])

    with pytest.raises(REFUSED) as caught:
        groups.claim(group, hosts[1])

    assert reason(caught) == f"its members are on {hosts[0]}"
    groups.delete(first)
    with pytest.raises(REFUSED):
        groups.claim(group, hosts[1])
    groups.delete(second)
    groups.claim(group, hosts[1])


def test_the_only_member_of_an_affinity_group_may_move_and_others_join_only_afterwards(
    groups: Groups, hosts: list[str]
) -> None:
    group = groups.group("affinity")
    member = groups.claim(group, hosts[0])

    groups.move(member, hosts[1])

    for host in hosts:
        with pytest.raises(REFUSED) as caught:
            groups.claim(group, host)
        assert reason(caught) == f"its member {member.uuid} is moving, and nobody joins before that has ended"
    groups.swap(member, hosts[2])
    groups.confirm(member)
    groups.claim(group, hosts[2])
    with pytest.raises(REFUSED):
        groups.claim(group, hosts[0])


def test_one_of_several_members_of_an_affinity_group_cannot_move(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("affinity")
    member = groups.claim(group, hosts[0])
    groups.claim(group, hosts[0])

    with pytest.raises(REFUSED) as caught:
        groups.move(member, hosts[1])

    assert reason(caught) == f"it would leave others behind on {hosts[0]}: only a member that is the only one moves"
    with pytest.raises(REFUSED):
        groups.swap(member, hosts[1], guest_gone=True)
    groups.move(member, hosts[0])


def test_members_leave_a_forced_down_host_one_by_one_for_the_same_host(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("affinity")
    members = [groups.claim(group, hosts[0]) for _ in range(3)]
    groups.force_down(hosts[0])

    groups.move(members[0], hosts[1])
    with pytest.raises(REFUSED) as caught:
        groups.move(members[1], hosts[2])

    assert reason(caught) == f"its members are on {hosts[1]}"
    groups.move(members[1], hosts[1])
    occupied = groups.occupancy(group)
    assert occupied == {hosts[0]: OccupiedRoot(3, forced_down=True), hosts[1]: OccupiedRoot(2, forced_down=False)}
    groups.confirm(members[0], guest_gone=False, leave_residue=True)
    groups.move(members[2], hosts[1])
    groups.claim(group, hosts[1])


def test_releases_are_not_refused_if_the_rule_is_already_broken(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("affinity")
    members = [groups.claim(group, hosts[0]) for _ in range(3)]
    groups.force_down(hosts[0])
    groups.move(members[0], hosts[1])
    groups.move(members[1], hosts[1])
    groups.force_down(hosts[0], down=False)

    groups.confirm(members[0])
    groups.revert(members[1])
    groups.move(members[2], hosts[0])
    groups.release(members[0])
    groups.delete(members[1])
    groups.revert(members[2])
    assert {uuid: there for uuid, there in groups.places().items() if there} == {members[2].uuid: {hosts[0]}}


# --- Residues, members without a host, soft rules ---------------------------------------------------------------------


def test_a_residue_is_not_a_member(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity")
    member = groups.claim(group, hosts[0])
    groups.accept(member)

    assert groups.swap(member, hosts[1], leave_residue=True) is not None
    groups.claim(group, hosts[0])
    groups.move(member, hosts[2])
    residue = groups.confirm(member, guest_gone=False, leave_residue=True).residue_uuid

    assert groups.store.held(str(residue)) == {hosts[1]: ONE}
    groups.claim(group, hosts[1])
    assert set(groups.shown(group).members) == set(groups.members)


def test_a_member_without_a_host_stays_a_member_and_returns_under_the_rule(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("affinity")
    member, other = groups.claim(group, hosts[0]), groups.claim(group, hosts[0])
    groups.release(member)

    assert groups.shown(group).members == {member.uuid: None, other.uuid: hosts[0]}
    for named in (group, None):
        with pytest.raises(REFUSED):
            groups.claim(named, hosts[1], member.uuid)
    groups.delete(other)
    with pytest.raises(errors.InvalidState):
        groups.dispatcher.call(DeleteServerGroup(request_id=ids.fresh(), uuid=group.uuid))
    groups.claim(None, hosts[1], member.uuid)
    assert groups.shown(group).members == {member.uuid: hosts[1]}


def test_a_member_that_a_raw_write_removes_from_its_host_no_longer_counts_there(
    groups: Groups, hosts: list[str]
) -> None:
    group = groups.group("anti-affinity")
    member = groups.claim(group, hosts[0])
    groups.store.put(member.uuid, {}, 1)
    groups.claim(group, hosts[0])


@pytest.mark.parametrize("policy", ["soft-affinity", "soft-anti-affinity"])
def test_a_soft_rule_refuses_nothing_and_its_members_are_counted(
    groups: Groups, hosts: list[str], policy: GroupPolicy
) -> None:
    group = groups.group(policy)
    for host in (hosts[0], hosts[0], hosts[1]):
        groups.claim(group, host)
    for member in list(groups.members.values()):
        groups.move(member, hosts[2])
    assert {host: root.members for host, root in groups.occupancy(group).items()} == {
        hosts[0]: 2,
        hosts[1]: 1,
        hosts[2]: 3,
    }


def test_occupancy_excludes_the_given_members(groups: Groups, hosts: list[str]) -> None:
    group = groups.group("anti-affinity")
    first, second = groups.claim(group, hosts[0]), groups.claim(group, hosts[1])
    groups.move(first, hosts[2])

    assert set(groups.occupancy(group)) == set(hosts)
    assert set(groups.occupancy(group, first)) == {hosts[1]}
    assert not groups.occupancy(group, first, second)
    assert not groups.occupancy(groups.group())
