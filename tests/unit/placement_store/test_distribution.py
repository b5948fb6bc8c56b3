"""Test how a reshape distributes the allocations of consumers over providers, against every possible distribution."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.moorage.executed_lines import executed_lines

from moorage import errors
from placement_store.reshapes.distribution import AllocationKey, Bin, DistributionProblem, InventoryKey, Item
from placement_store.reshapes.distribution_search import distribute

STEPS = 100_000
#: The limit for the cost of distributing a thousand consumers: two seconds on a slow machine.
MAX_LINES = 3_000_000


def problem(
    items: Sequence[Item],
    bins: Mapping[InventoryKey, Bin],
    held: Mapping[AllocationKey, int] | None = None,
    **names: str,
) -> DistributionProblem:
    """A problem in which consumers hold only the items to distribute, and what `held` adds."""
    present: Counter[AllocationKey] = Counter()
    for item in items:
        present.update({(item.consumer, item.source, name): amount for name, amount in item.amounts.items()})
    present.update(held or {})
    return DistributionProblem(items=items, bins=bins, held=present, names=names)


def vgpus(amounts: Sequence[int], *places: str) -> list[Item]:
    return [Item(f"c{number}", "root", {"VGPU": amount}, places) for number, amount in enumerate(amounts)]


def bins(**capacities: float) -> dict[InventoryKey, Bin]:
    return {(place, "VGPU"): Bin(capacity) for place, capacity in capacities.items()}


# --- The chosen places ------------------------------------------------------------------------------------------------


def test_items_stay_if_they_may_and_others_go_where_they_leave_least_room() -> None:
    items = vgpus([2, 2, 1], "root", "wide", "narrow")
    assert distribute(problem(items, bins(root=2, wide=8, narrow=3)), max_steps=STEPS) == ["root", "narrow", "narrow"]


def test_items_of_two_providers_stay_apart_if_there_is_room_and_else_come_together() -> None:
    items = [Item("c", source, {"VGPU": 1}, ("narrow", "wide")) for source in ("gpu0", "gpu1")]
    assert sorted(distribute(problem(items, bins(narrow=2, wide=8)), max_steps=STEPS)) == ["narrow", "wide"]
    assert distribute(problem(items, bins(narrow=0, wide=8)), max_steps=STEPS) == ["wide", "wide"]


def test_a_distribution_that_a_greedy_choice_misses_is_found() -> None:
    # Largest first into the fullest place: 4 into 5, and 3 into 6, leave no room for 2 and 2; 4 and 2 must share the 6.
    items = vgpus([3, 2, 2, 4], "a", "b")
    places = distribute(problem(items, bins(a=5, b=6)), max_steps=STEPS)
    taken = Counter[str]()
    for item, place in zip(items, places, strict=True):
        taken[place] += item.amounts["VGPU"]
    assert taken == {"a": 5, "b": 6}


def test_equal_places_that_have_got_different_amounts_are_each_tried() -> None:
    # 5 + 3 + 2 and 4 + 4 + 2: the first 4 must not go beside the 5, although there is room for it.
    items = vgpus([5, 4, 4, 3, 2, 2], "a", "b")
    places = distribute(problem(items, bins(a=10, b=10)), max_steps=STEPS)
    assert places[1] == places[2] != places[0] == places[3]


def test_classes_of_one_item_need_one_place_with_room_for_each() -> None:
    function = {"SRIOV_NET_VF": 1, "NET_BW_EGR_KILOBIT_PER_SEC": 600}
    items = [Item(f"c{number}", "root", function, ("nic1", "nic2")) for number in range(2)]
    found = {(nic, name): Bin(1000) for nic in ("nic1", "nic2") for name in function}
    assert sorted(distribute(problem(items, found), max_steps=STEPS)) == ["nic1", "nic2"]

    found["nic2", "NET_BW_EGR_KILOBIT_PER_SEC"] = Bin(599)
    with pytest.raises(errors.ImpossibleDeal) as caught:
        distribute(problem(items, found), max_steps=STEPS)
    assert caught.value.reason == (
        "nic1 has 400 of 600 NET_BW_EGR_KILOBIT_PER_SEC free; nic2 has 599 of 600 NET_BW_EGR_KILOBIT_PER_SEC free"
    )


def test_unit_rules_apply_to_the_resulting_total_of_a_consumer() -> None:
    bin_ = {("nic", "VGPU"): Bin(100, min_unit=4, max_unit=6, step_size=2)}
    halves = [Item("c", source, {"VGPU": 2}, ("nic",)) for source in ("left", "right")]

    assert distribute(problem(halves, bin_), max_steps=STEPS) == ["nic", "nic"]
    for items, held, rule in [
        (halves[:1], {}, "min_unit is 4"),
        (halves, {("c", "nic", "VGPU"): 4}, "max_unit is 6"),
        (halves, {("c", "nic", "VGPU"): 1}, "step_size is 2"),
    ]:
        with pytest.raises(errors.ImpossibleDeal, match=rule):
            distribute(problem(items, bin_, held), max_steps=STEPS)


def test_unit_rules_do_not_apply_to_items_that_stay() -> None:
    items = vgpus([7], "root", "child")
    found = {("root", "VGPU"): Bin(8, max_unit=1), ("child", "VGPU"): Bin(8)}
    assert distribute(problem(items, found), max_steps=STEPS) == ["root"]


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_an_impossible_distribution_names_a_consumer_by_uuid_and_the_places_by_name() -> None:
    items = vgpus([3, 3, 3], "u1", "u2")
    with pytest.raises(errors.ImpossibleDeal) as caught:
        distribute(problem(items, bins(u1=5, u2=5), u1="gpu0", u2="gpu1"), max_steps=STEPS)
    assert (caught.value.consumer_uuid, caught.value.provider_uuid) == ("c2", "root")
    assert caught.value.reason == "gpu0 has 2 of 3 VGPU free; gpu1 has 2 of 3 VGPU free"


def test_an_error_names_a_few_of_many_places() -> None:
    with pytest.raises(errors.ImpossibleDeal, match="; and 2 more"):
        distribute(problem(vgpus([2], *"abcdef"), bins(**dict.fromkeys("abcdef", 1))), max_steps=STEPS)


def test_a_search_that_reaches_its_bound_does_not_claim_that_there_is_no_distribution() -> None:
    items = vgpus([3, 2, 2, 4], "a", "b")
    with pytest.raises(errors.SearchBoundReached) as caught:
        distribute(problem(items, bins(a=5, b=6), root="node1"), max_steps=4)
    assert (caught.value.what, caught.value.steps) == ("a deal of what is held of node1", 4)


@pytest.mark.parametrize(
    ("amounts", "capacities"),
    [
        # One too many for places that are all alike; and far more in sum than there is room.
        ([3] * 33, [8] * 16),
        ([5, 4, 3, 2, 1] * 20, [16] * 16),
        ([7] * 17 + [5] * 17, [12] * 16),
    ],
)
def test_an_impossible_distribution_is_found_without_trying_equal_ones(
    amounts: list[int], capacities: list[int]
) -> None:
    places = [f"gpu{number:02}" for number in range(len(capacities))]
    found = bins(**dict(zip(places, capacities, strict=True)))
    with pytest.raises(errors.ImpossibleDeal):
        distribute(problem(vgpus(amounts, *places), found), max_steps=5_000)


def test_items_without_common_places_are_distributed_separately() -> None:
    # The second kind has no distribution; the first kind has very many.
    first = [Item(f"c{number}", "root", {"VGPU": number + 1}, ("a", "b", "c")) for number in range(12)]
    second = [Item(f"c{number}", "root", {"SRIOV_NET_VF": 1}, ("d", "e")) for number in range(3)]
    found = bins(a=40, b=41, c=42) | {("d", "SRIOV_NET_VF"): Bin(1), ("e", "SRIOV_NET_VF"): Bin(1)}
    with pytest.raises(errors.ImpossibleDeal, match="SRIOV_NET_VF"):
        distribute(problem([*first, *second], found), max_steps=100)


def test_a_thousand_consumers_are_distributed_with_few_steps_for_each() -> None:
    places = [f"gpu{number:02}" for number in range(16)]
    items = vgpus([1 + number % 4 for number in range(1000)], *places)
    wanted = problem(items, bins(**dict.fromkeys(places, 160)))
    assert executed_lines(lambda: distribute(wanted, max_steps=STEPS)) < MAX_LINES


def test_isolated_groups_of_a_consumer_share_no_provider() -> None:
    items = [Item("c", source, {"VGPU": 1}, ("narrow", "wide")) for source in ("gpu0", "gpu1")]
    isolated = {"c": {"_1": ("gpu0",), "_2": ("gpu1",)}}
    question = problem(items, bins(narrow=2, wide=8), narrow="n", wide="w")
    assert sorted(distribute(replace(question, isolated=isolated), max_steps=STEPS)) == ["narrow", "wide"]

    question = problem(items, bins(narrow=0, wide=8), wide="w")
    with pytest.raises(errors.ImpossibleDeal, match="w serves group _1 of the same consumer, whose groups"):
        distribute(replace(question, isolated=isolated), max_steps=STEPS)
    # A group that stays on its provider counts as well; an item of no isolated group may join it.
    with pytest.raises(errors.ImpossibleDeal, match="serves group _2"):
        distribute(replace(question, isolated={"c": {"_1": ("gpu0",), "_2": ("wide",)}}), max_steps=STEPS)
    assert distribute(replace(question, isolated={"c": {"_2": ("wide",)}}), max_steps=STEPS) == ["wide", "wide"]


def test_isolated_groups_of_different_classes_are_distributed_together() -> None:
    # Each item alone would go to place a, which the second one needs: so the first one has to go to b.
    items = [Item("c", "gpu0", {"VGPU": 1}, ("a", "b")), Item("c", "gpu1", {"PGPU": 1}, ("a",))]
    found = {("a", "VGPU"): Bin(1), ("b", "VGPU"): Bin(9), ("a", "PGPU"): Bin(1)}
    question = replace(problem(items, found), isolated={"c": {"_1": ("gpu0",), "_2": ("gpu1",)}})
    assert distribute(question, max_steps=STEPS) == ["b", "a"]


# --- Against enumeration ----------------------------------------------------------------------------------------------

CLASSES, PLACES = ("A", "B"), ("root", "p", "q", "r")
small_bins = st.builds(
    Bin,
    capacity=st.integers(0, 8) | st.just(4.5),
    used=st.integers(0, 2),
    min_unit=st.sampled_from([1, 1, 2]),
    max_unit=st.sampled_from([8, 8, 3]),
    step_size=st.sampled_from([1, 1, 2]),
)


@st.composite
def questions(draw: st.DrawFn) -> DistributionProblem:
    """Up to five consumers with up to two units each, among up to four places; some hold something already."""
    # Few kinds of bins, so that some places are equal: the search treats equal places specially.
    kinds = st.sampled_from(draw(st.lists(small_bins, min_size=1, max_size=2)))
    found = {(place, name): draw(kinds) for place in PLACES for name in CLASSES}
    places = st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True).map(tuple)
    choices = draw(st.lists(places, min_size=1, max_size=2))
    amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 4), min_size=1)
    items = [
        Item(f"c{consumer}", source, draw(amounts), draw(st.sampled_from(choices)))
        for consumer in range(draw(st.integers(1, 5)))
        for source in draw(st.lists(st.sampled_from(("root", "other")), min_size=1, max_size=2, unique=True))
    ]
    held = draw(
        st.dictionaries(
            st.tuples(st.sampled_from([item.consumer for item in items]), st.just("p"), st.sampled_from(CLASSES)),
            st.integers(1, 3),
            max_size=1,
        )
    )
    groups = st.sampled_from([("root", "other"), ("root", "p"), ("other", "q"), ("root",)])
    isolated = {
        consumer: {f"_{number}": (provider,) for number, provider in enumerate(draw(groups))}
        for consumer in sorted({item.consumer for item in items})
        if draw(st.booleans())
    }
    return replace(problem(items, found, held), isolated=isolated)


def are_apart(question: DistributionProblem, places: Sequence[str]) -> bool:
    """Tell if isolated groups of one consumer are on different providers, counting both existing and new places."""
    there = {
        (consumer, provider, suffix)
        for consumer, groups in question.isolated.items()
        for suffix, providers in groups.items()
        for provider in providers
    }
    come = {
        (item.consumer, place, suffix)
        for item, place in zip(question.items, places, strict=True)
        for consumer, source, suffix in there
        if (consumer, source) == (item.consumer, item.source)
    }
    return not any(one[:2] == other[:2] and one[2] != other[2] for one in come for other in there | come)


def is_good(question: DistributionProblem, places: Sequence[str]) -> bool:
    """Tell if a distribution is valid: everything fits, and every sum that changes keeps the unit rules."""
    added: dict[InventoryKey, int] = {}
    for item, place in zip(question.items, places, strict=True):
        for name, amount in item.amounts.items():
            added[place, name] = added.get((place, name), 0) + amount
    if any(question.bins[pair].used + amount > question.bins[pair].capacity for pair, amount in added.items()):
        return False
    if not are_apart(question, places):
        return False
    sums = Counter(question.held)
    for item, place in zip(question.items, places, strict=True):
        for name, amount in item.amounts.items():
            sums[item.consumer, item.source, name] -= amount
            sums[item.consumer, place, name] += amount
    places_of_some = {(item.consumer, place, name) for item in question.items for place, name in item.pairs}
    return not any(
        sums[held] and sums[held] != question.held.get(held, 0) and question.bins[held[1:]].broken_rule(sums[held])
        for held in places_of_some
    )


def every_distribution(question: DistributionProblem) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(item.places for item in question.items))


@settings(max_examples=250, deadline=None)
@given(question=questions())
def test_a_distribution_is_found_exactly_if_enumeration_finds_one(question: DistributionProblem) -> None:
    if any(is_good(question, places) for places in every_distribution(question)):
        found = distribute(question, max_steps=STEPS)
        assert all(place in item.places for item, place in zip(question.items, found, strict=True))
        assert is_good(question, found)
        assert distribute(question, max_steps=STEPS) == found
    else:
        with pytest.raises(errors.ImpossibleDeal) as caught:
            distribute(question, max_steps=STEPS)
        assert caught.value.consumer_uuid in {item.consumer for item in question.items}


@settings(max_examples=50, deadline=None)
@given(question=questions(), bound=st.integers(1, 20))
def test_a_bound_changes_no_result_unless_it_is_reached(question: DistributionProblem, bound: int) -> None:
    def outcome(max_steps: int) -> object:
        try:
            return distribute(question, max_steps=max_steps)
        except errors.ImpossibleDeal as fault:
            return fault.data

    try:
        early = outcome(bound)
    except errors.SearchBoundReached:
        return
    assert early == outcome(STEPS)
