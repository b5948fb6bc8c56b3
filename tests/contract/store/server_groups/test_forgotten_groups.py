"""Test server groups created by claims: without members they are deleted after a time; a claim creates them again."""

import pytest
from support.placement_store.builders import Store
from support.placement_store.group_builders import Groups

from moorage import errors, ids
from moorage.messages import CreateServerGroup, GetServerGroup
from moorage.model import ServerGroup
from moorage.service.stored_requests import Retention
from placement_store.server_groups.rows import delete_without_members
from placement_store.upkeep.pruning import Pruning

KEPT = 5000.0


@pytest.fixture
def groups(store: Store) -> Groups:
    return Groups(store)


@pytest.fixture
def pruning(store: Store) -> Pruning:
    return Pruning(store.database, Retention(acknowledged=1.0, unacknowledged=1.0, tombstones=KEPT))


def is_known(groups: Groups, group: ServerGroup) -> bool:
    try:
        groups.dispatcher.call(GetServerGroup(uuid=group.uuid))
    except errors.ServerGroupNotFound:
        return False
    return True


def test_a_claimed_group_without_members_is_deleted_at_the_age_of_a_tombstone(
    store: Store, groups: Groups, pruning: Pruning
) -> None:
    group, host = groups.group(), groups.host()
    groups.delete(groups.claim(group, host))

    store.age("consumer_groups", "created_at", KEPT - 100)
    pruning.round()
    assert is_known(groups, group)

    store.age("consumer_groups", "created_at", 200)
    pruning.round()
    assert not is_known(groups, group)


def test_a_group_with_a_member_is_kept(store: Store, groups: Groups, pruning: Pruning) -> None:
    group, host = groups.group(), groups.host()
    groups.claim(group, host)

    store.age("consumer_groups", "created_at", 2 * KEPT)
    pruning.round()

    assert is_known(groups, group)


def test_a_group_created_by_name_is_kept_without_members(store: Store, groups: Groups, pruning: Pruning) -> None:
    group = groups.group()
    groups.dispatcher.call(CreateServerGroup(request_id=ids.fresh(), group=group, name="kept", project_id="p"))

    store.age("consumer_groups", "created_at", 2 * KEPT)
    pruning.round()

    assert is_known(groups, group)


def test_each_round_examines_a_part_of_the_groups_and_the_next_one_continues(
    store: Store, groups: Groups, pruning: Pruning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_store.server_groups.rows._EXAMINED", 2)
    monkeypatch.setattr("placement_store.upkeep.pruning._AT_ONCE", 1)
    host = groups.host()
    # In the order of their uuids, the third and the last one have a member.
    ordered = sorted((groups.group() for _ in range(6)), key=lambda group: group.uuid)
    for group in ordered:
        member = groups.claim(group, host)
        if group not in (ordered[2], ordered[5]):
            groups.delete(member)
    store.age("consumer_groups", "created_at", 2 * KEPT)

    def known() -> list[int]:
        return [number for number, group in enumerate(ordered) if is_known(groups, group)]

    pruning.round()
    assert known() == [2, 3, 4, 5]
    pruning.round()
    assert known() == [2, 4, 5]
    pruning.round()
    assert known() == [2, 5]
    # After the end they are examined from the first one again.
    groups.delete(groups.members[next(iter(groups.shown(ordered[2]).members))])
    for _ in range(3):
        pruning.round()
    assert known() == [5]


def test_a_claim_creates_a_deleted_group_again_with_its_rule(store: Store, groups: Groups, pruning: Pruning) -> None:
    group, host = groups.group(), groups.host()
    groups.delete(groups.claim(group, host))
    store.age("consumer_groups", "created_at", 2 * KEPT)
    pruning.round()

    member = groups.claim(group, host)

    assert groups.shown(group).members == {member.uuid: host}
    with pytest.raises(errors.GroupRuleRefused):
        groups.claim(group, host)


def test_a_group_with_a_new_member_since_it_was_found_is_kept(store: Store, groups: Groups) -> None:
    emptied, taken, host = groups.group(), groups.group(), groups.host()
    groups.delete(groups.claim(emptied, host))
    groups.claim(taken, host)

    found = sorted((emptied.uuid, taken.uuid))
    deleted = store.database.write(lambda connection: delete_without_members(connection, found))

    assert deleted == 1
    assert [is_known(groups, emptied), is_known(groups, taken)] == [False, True]


def test_many_groups_are_deleted_in_bounded_transactions(
    store: Store, groups: Groups, pruning: Pruning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_store.upkeep.pruning._AT_ONCE", 2)
    made, host = [groups.group() for _ in range(5)], groups.host()
    for group in made:
        groups.delete(groups.claim(group, host))
    store.age("consumer_groups", "created_at", 2 * KEPT)

    pruning.round()

    assert not any(is_known(groups, group) for group in made)
