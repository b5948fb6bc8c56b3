"""Test properties of moves, on SQLite: for any amounts, hosts and foreign writes, each sum is exact."""

from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.placement_store.builders import Store
from support.placement_store.move_builders import Moving
from support.placement_store.move_ledger import (
    FILLER,
    HOSTS,
    UUIDS,
    Ledger,
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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    held=asked(st.just("source")),
    news=destinations,
    wanted=extras,
    outcome=st.sampled_from(["confirm", "revert"]),
    residue=st.booleans(),
)
def test_an_ended_move_leaves_exact_amounts_and_names_all_lost_foreign_amounts(
    built: Store,
    held: dict[str, dict[str, int]],
    news: list[dict[str, dict[str, int]]],
    wanted: list[Any],
    outcome: str,
    residue: bool,
) -> None:
    store = emptied(built)
    moving = Moving(store, held).build()
    ledger = Ledger(store, moving, certain(wanted, news))
    begun = False
    for step, new in enumerate(news):
        ledger.others_write(step, begun=begun)
        moving.generation = store.consumer(moving.uuid).generation
        before, rows = used(store), store.rows()
        try:
            if begun:
                ledger.lost += sums(moving.swap(new).extras)
            else:
                moving.begin(new, kind="resize", drop_extras=True)
        except errors.CapacityExceeded:
            assert store.rows() == rows, "a refused move has changed something"
            event("refused")
            continue
        begun = True
        assert not (used(store) - before) - sums(new), "a move has used more than its amounts"
        assert_sound(store)
    if not begun:
        return
    ledger.others_write(len(news), begun=begun)
    moving.accept()
    fill_up(store)
    before = used(store)

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=not residue, leave_residue=residue))

    event(f"{outcome}, residue {ended.residue_uuid is not None}")
    assert not used(store) - before, "the end of a move has needed room"
    assert_sound(store)
    ledger.lost += sums(ended.extras)
    kept = sums(moving.claimed if outcome == "confirm" else held)
    assert sums(moving.amounts) == kept + ledger.put - ledger.lost
    assert not ledger.lost - ledger.put, "more is named as lost than there were foreign amounts"
    for uuid in (moving.uuid, moving.attempt, moving.next_attempt):
        store.delete(uuid, for_good=True)
    assert [one.uuid for one in store.audit().holders] == [FILLER], "something has leaked"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(held=asked(st.just("source")), new=asked(st.sampled_from(HOSTS)), wanted=extras)
def test_a_move_is_refused_exactly_for_foreign_amounts_on_providers_that_it_leaves(
    built: Store, held: dict[str, dict[str, int]], new: dict[str, dict[str, int]], wanted: list[Any]
) -> None:
    store = emptied(built, room=100)
    moving = Moving(store, held).build()
    ledger = Ledger(store, moving, [(0, *rest) for _, *rest in wanted])
    ledger.others_write(0, begun=False)
    moving.generation = store.consumer(moving.uuid).generation
    tree = set() if next(iter(new)) == UUIDS["source"] else {UUIDS["source"], UUIDS["of source"]}
    left = (tree | (held.keys() - {UUIDS["source"], UUIDS["of source"]})) - new.keys()
    expected = {pair: amount for pair, amount in ledger.put.items() if pair[0] in left}
    try:
        moving.begin(new, kind="resize")
    except errors.CannotCarryOver as refused:
        named = {(one["provider_uuid"], one["resource_class"]): one["amount"] for one in refused.amounts}
        assert named == expected
        assert moving.migrations == {}
    else:
        assert not expected
