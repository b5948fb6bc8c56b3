"""A request whose answer was lost, repeated after the world has moved on: what stands is kept, the rest asked anew."""

import msgspec
import pytest
from support.scheduler.builders import select
from support.scheduler.rig import Rig, rig_on_each_store

from moorage import errors
from moorage.messages import SelectDestinations

rig = rig_on_each_store


def for_those_released(message: SelectDestinations, rig: Rig, request_id: str) -> SelectDestinations:
    """Return a conductor's request after a repeat: a new id, only the released instances, each with its generation."""
    again = rig.scheduler().select(message)
    released = {
        uuid: claimed.consumer_generation
        for uuid, (claimed, *_) in zip(message.instance_uuids, again, strict=True)
        if claimed.released
    }
    return msgspec.structs.replace(
        message,
        request_id=request_id,
        instance_uuids=tuple(released),
        consumer_generations={uuid: generation for uuid, generation in released.items() if generation is not None},
    )


def test_of_fifty_one_was_deleted_before_the_repeat_and_the_other_49_keep_their_hosts_once(rig: Rig) -> None:
    rig.add_hosts(range(5), vcpus=20, memory_mb=10 * 2048)
    message = select("r1", count=50, num_alternates=1)
    lost = rig.scheduler().select(message)
    deleted = message.instance_uuids[7]
    rig.release(deleted, for_good=True)

    again = rig.scheduler().select(message)

    assert [selections[0].released for selections in again].count(True) == 1
    assert again[7][0].released
    assert again[:7] + again[8:] == lost[:7] + lost[8:]
    holders = rig.audit().holders
    assert {holder.uuid for holder in holders} == set(message.instance_uuids) - {deleted}
    assert {holder.allocations for holder in holders} == {3}
    # It was deleted for good: going on for it comes to nothing.
    with pytest.raises(errors.ConsumerDeleted):
        rig.scheduler().select(for_those_released(message, rig, "r2"))


def test_what_was_released_is_asked_for_again_with_a_new_id_and_the_generation_that_it_was_told(rig: Rig) -> None:
    rig.add_hosts(range(3))
    message = select("r1", count=3, num_alternates=1)
    lost = rig.scheduler().select(message)
    rig.release(message.instance_uuids[1])

    follow_up = for_those_released(message, rig, "r2")
    [[claimed, *alternates]] = rig.scheduler().select(follow_up)

    assert follow_up.instance_uuids == message.instance_uuids[1:2]
    assert follow_up.consumer_generations == {message.instance_uuids[1]: 2}
    assert (claimed.consumer_generation, claimed.released) == (3, False)
    assert claimed.claim_id != lost[1][0].claim_id
    assert len(alternates) == 1
    assert rig.scheduler().select(follow_up) == [[claimed, *alternates]]
    assert {holder.uuid for holder in rig.audit().holders} == set(message.instance_uuids)
    # The first answer still tells what stands of it, and that the rest has gone on without it.
    again = rig.scheduler().select(message)
    assert [selections[0].released for selections in again] == [False, True, False]


def test_a_generation_that_has_moved_on_is_a_conflict_and_claims_nothing(rig: Rig) -> None:
    rig.add_hosts(range(3))
    message = select("r1", count=2)
    rig.scheduler().select(message)
    rig.release(message.instance_uuids[0])
    follow_up = for_those_released(message, rig, "r2")
    rig.scheduler().select(follow_up)

    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        rig.scheduler().select(msgspec.structs.replace(follow_up, request_id="r3"))

    assert (caught.value.named, caught.value.found) == (2, 3)
    assert len(rig.audit().holders) == 2
