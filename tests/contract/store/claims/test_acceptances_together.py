"""Test claims that are accepted at the same time: each is accepted or refused as if it were alone."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from support.databases.statements import listening
from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from moorage import errors, ids
from moorage.batches import BatchItem
from moorage.messages import AcceptClaim


def at_once(store: Store, messages: Sequence[AcceptClaim]) -> list[type]:
    """Accept claims in concurrent calls; return the type of each error, or of None."""
    barrier = Barrier(len(messages))

    def accept(message: AcceptClaim) -> None:
        barrier.wait(20)
        store.dispatcher.call(message)

    with ThreadPoolExecutor(len(messages)) as threads:
        made: list[Future[None]] = [threads.submit(accept, message) for message in messages]
        return [type(each.exception(30)) for each in made]


def in_one_message(store: Store, messages: Sequence[AcceptClaim]) -> list[type]:
    """Do the same as :func:`at_once` for calls of one message."""
    calls: list[BatchItem[AcceptClaim, Any]] = [BatchItem(message) for message in messages]
    for call, alone in zip(calls, store.dispatcher.accept_many(calls), strict=True):
        if alone is not None:
            call.do(lambda _message, alone=alone: alone())  # type: ignore[misc]
    faults: list[type] = []
    for call in calls:
        try:
            call.outcome()
        except errors.MoorageError as refusal:
            faults.append(type(refusal))
        else:
            faults.append(type(None))
    return faults


@pytest.mark.parametrize("accept", [at_once, in_one_message])
def test_only_released_claims_are_refused_when_claims_are_accepted_together(store: Store, accept: Any) -> None:
    hosts = [store.provider(VCPU=8, MEMORY_MB=8192) for _ in range(4)]
    uuids = [ids.fresh() for _ in range(12)]
    claims = {uuid: store.claim(uuid, {hosts[n % 4]: SMALL}).claim_id for n, uuid in enumerate(uuids)}
    released, doubled = set(uuids[::3]), uuids[1::3]
    stale = {uuid: ids.fresh() if uuid in released else claims[uuid] for uuid in uuids}
    attempts = {uuid: ids.fresh() for uuid in uuids}
    messages = [
        AcceptClaim(
            request_id=ids.fresh(), consumer_uuid=uuid, claim_id=stale[uuid], attempt_id=attempts[uuid], host="host"
        )
        for uuid in (*uuids, *doubled)
    ]

    assert accept(store, messages) == [
        errors.ClaimReleased if message.consumer_uuid in released else type(None) for message in messages
    ]
    found = {uuid: store.consumer(uuid).accepted_by for uuid in uuids}
    assert found == {uuid: None if uuid in released else attempts[uuid] for uuid in uuids}


def test_acceptances_of_one_message_cost_one_transaction(store: Store) -> None:
    host = store.provider(VCPU=80, MEMORY_MB=81920)
    uuids = [ids.fresh() for _ in range(6)]
    messages = [
        AcceptClaim(
            request_id=ids.fresh(),
            consumer_uuid=uuid,
            claim_id=store.claim(uuid, {host: SMALL}).claim_id,
            attempt_id=ids.fresh(),
            host="host",
        )
        for uuid in uuids
    ]
    commits: list[object] = []
    with listening(store.database.engine, "commit", commits.append):
        assert in_one_message(store, messages) == [type(None)] * len(messages)
    assert len(commits) == 1
