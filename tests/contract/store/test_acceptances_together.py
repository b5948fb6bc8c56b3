"""Claims that are accepted at the same time: each is accepted or refused as it would be alone."""

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier

from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from moorage import errors, ids


def test_of_claims_that_are_accepted_together_the_released_ones_alone_are_refused(store: Store) -> None:
    hosts = [store.provider(VCPU=8, MEMORY_MB=8192) for _ in range(4)]
    uuids = [ids.fresh() for _ in range(12)]
    claims = {uuid: store.claim(uuid, {hosts[n % 4]: SMALL}).claim_id for n, uuid in enumerate(uuids)}
    released, doubled = set(uuids[::3]), uuids[1::3]
    stale = {uuid: ids.fresh() if uuid in released else claims[uuid] for uuid in uuids}
    attempts = {uuid: ids.fresh() for uuid in uuids}
    calls = [*uuids, *doubled]
    barrier = Barrier(len(calls))

    def accept(uuid: str) -> None:
        barrier.wait(20)
        store.accept(uuid, stale[uuid], attempts[uuid])

    with ThreadPoolExecutor(len(calls)) as threads:
        made: list[Future[None]] = [threads.submit(accept, uuid) for uuid in calls]
        faults = [type(each.exception(30)) for each in made]

    assert faults == [errors.ClaimReleased if uuid in released else type(None) for uuid in calls]
    found = {uuid: store.consumer(uuid).accepted_by for uuid in uuids}
    assert found == {uuid: None if uuid in released else attempts[uuid] for uuid in uuids}
