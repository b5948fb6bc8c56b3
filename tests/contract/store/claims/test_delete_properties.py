"""Test properties of deletes, on SQLite: foreign amounts are removed or kept as requested, and are all named."""

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.placement_store.builders import Store, request
from support.placement_store.move_builders import Moving
from support.placement_store.move_ledger import (
    FILLER,
    Ledger,
    Sums,
    asked,
    assert_sound,
    certain,
    destinations,
    emptied,
    extras,
    fill_up,
    sums,
    used,
)

from moorage import errors


def all_held(store: Store) -> Sums:
    return +used(store)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    held=asked(st.just("source")),
    news=st.one_of(st.just([]), destinations),
    wanted=extras,
    outcome=st.sampled_from([None, None, "confirm", "revert"]),
    residue=st.booleans(),
    keep=st.booleans(),
    is_named=st.booleans(),
)
def test_a_delete_keeps_or_removes_foreign_amounts_as_requested_and_names_them_all(
    built: Store,
    held: dict[str, dict[str, int]],
    news: list[dict[str, dict[str, int]]],
    wanted: list[Any],
    outcome: Any,
    residue: bool,
    keep: bool,
    is_named: bool,
) -> None:
    store = emptied(built)
    moving = Moving(store, held).build()
    ledger = Ledger(store, moving, certain(wanted, news))
    begun = False
    for step, new in enumerate(news):
        ledger.others_write(step, begun=begun)
        moving.generation = store.consumer(moving.uuid).generation
        try:
            if begun:
                ledger.lost += sums(moving.swap(new).extras)
            else:
                moving.begin(new, kind="resize", drop_extras=True)
        except errors.CapacityExceeded:
            continue
        begun = True
    ledger.others_write(len(news), begun=begun)
    if begun:
        moving.accept()
        if outcome is not None:
            ended = store.dispatcher.call(moving.ending(outcome, guest_gone=not residue, leave_residue=residue))
            ledger.lost += sums(ended.extras)
    left_by_others = ledger.put - ledger.lost
    fill_up(store)
    before = used(store)
    # The claims that the conductor has on record: after an ended move, that of one side.
    claimed_with = {moving.source_claim: request(held)} if not begun or outcome != "confirm" else {}
    if begun and outcome != "revert":
        claimed_with[moving.claim_id] = request(moving.claimed)

    released = store.delete(
        moving.uuid,
        for_good=True,
        leave_residue=residue,
        migration_uuids=(moving.migration,) if begun and outcome is None and is_named else (),
        claimed_with=claimed_with,
        keep_extras=keep,
    )

    event(f"{outcome if begun else 'not moved'}, residue {bool(released.residue_uuids)}, extras {bool(left_by_others)}")
    assert not used(store) - before, "a delete has needed room"
    assert_sound(store)
    assert sums(released.extras) == left_by_others, "the named amounts are not the foreign amounts"
    store.delete(FILLER)
    residues = {holder.uuid for holder in store.audit().holders if holder.consumer_type == "RESIDUE"}
    assert residues <= {moving.attempt, moving.next_attempt, moving.migration}
    for uuid in sorted(str(residue) for residue in residues):
        store.delete(uuid, for_good=True)
    assert all_held(store) == (left_by_others if keep else Counter())
    foreign: Sums = Counter()
    for holder in store.audit().holders:
        assert holder.uuid == moving.uuid
        foreign += sums(holder.foreign)
    assert foreign == all_held(store), "an audit finds other foreign amounts"
