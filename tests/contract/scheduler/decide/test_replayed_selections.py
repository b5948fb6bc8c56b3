"""Test repeating a request whose answer was lost: claims that stand are kept, released ones are requested again."""

import msgspec
import pytest
from support.scheduler.builders import select
from support.scheduler.rig import Rig

from moorage import errors
from moorage.messages import SelectDestinations


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


def test_if_one_of_fifty_instances_was_deleted_before_the_repetition_the_others_keep_their_hosts(rig: Rig) -> None:
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
    # It was deleted for good, so nothing can be claimed for it.
    with pytest.raises(errors.ConsumerDeleted):
        rig.scheduler().select(for_those_released(message, rig, "r2"))


def test_released_claims_are_requested_again_with_a_new_id_and_the_returned_generation(rig: Rig) -> None:
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
    # The answer to the first request still marks the claim that was released.
    again = rig.scheduler().select(message)
    assert [selections[0].released for selections in again] == [False, True, False]


def test_a_stale_generation_is_a_conflict_and_claims_nothing(rig: Rig) -> None:
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
