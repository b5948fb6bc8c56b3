"""Test that the change feed is written at the end of a transaction: its readers wait only for a moment for a number."""

from collections.abc import Callable

import pytest
from support.databases.statements import statements_of
from support.placement_store.builders import Store
from support.placement_store.group_builders import Groups
from support.placement_store.move_builders import SMALL, Moving, disk
from support.placement_store.reshape_builders import Reshaping

from moorage import ids
from moorage.messages import HealConsumers
from moorage.model import ProviderAmounts, RecordedHold, SeenConsumer

pytestmark = pytest.mark.backends("sqlite")


def claim_of_a_member(store: Store) -> Callable[[], object]:
    groups = Groups(store)
    host = groups.host()
    return lambda: groups.claim(groups.group(), host)


def swap_of_a_member(store: Store) -> Callable[[], object]:
    groups = Groups(store)
    member, after = groups.claim(groups.group(), groups.host()), groups.host()
    return lambda: groups.swap(member, after)


def confirmation_that_leaves_a_residue(store: Store) -> Callable[[], object]:
    # A residue gives the amounts of pools back.
    moving = Moving(store, {store.provider(**SMALL): SMALL, **disk(store.provider(DISK_GB=10), 1)}).build()
    moving.begin({store.provider(**SMALL): SMALL})
    moving.accept()
    return lambda: moving.confirm(guest_gone=False, leave_residue=True)


def deletion_of_an_attempt(store: Store) -> Callable[[], object]:
    moving = Moving(store, {store.provider(**SMALL): SMALL}).build()
    store.delete(moving.uuid, for_good=True, leave_residue=True)
    return lambda: store.delete(moving.attempt, for_good=True)


def heal_of_a_residue(store: Store) -> Callable[[], object]:
    attempt, host = ids.fresh(), store.provider(**SMALL)
    residue = RecordedHold(
        consumer_uuid=attempt,
        consumer_type="RESIDUE",
        claim_id=None,
        root_provider_uuid=host,
        accepted_by=attempt,
        accepted_host="host",
        project_id="project",
        user_id="user",
        owner=None,
        allocations={host: ProviderAmounts(resources=SMALL)},
    )
    message = HealConsumers(request_id=ids.fresh(), seen={attempt: SeenConsumer()}, holds=(residue,))
    return lambda: store.dispatcher.call(message)


def reshape(store: Store) -> Callable[[], object]:
    host = store.provider(VCPU=4, VGPU=4)
    child = store.provider(parent=host)
    store.claim(ids.fresh(), {host: {"VGPU": 4}})
    return lambda: Reshaping(store).move((host, {"VGPU": 4}, child))


@pytest.mark.parametrize(
    "prepare",
    [
        claim_of_a_member,
        swap_of_a_member,
        confirmation_that_leaves_a_residue,
        deletion_of_an_attempt,
        heal_of_a_residue,
        reshape,
    ],
)
def test_only_the_answer_of_a_request_is_written_after_the_change_feed(
    store: Store, prepare: Callable[[Store], Callable[[], object]]
) -> None:
    write = prepare(store)
    with statements_of(store.database) as seen:
        write()
    transaction = seen[: seen.index("COMMIT", next(i for i, sql in enumerate(seen) if "INTO changes" in sql))]
    feed = [position for position, sql in enumerate(transaction) if "INTO changes" in sql]
    later = transaction[feed[0] :]
    assert [sql for sql in later if "INTO changes" not in sql and "requests" not in sql] == []
