"""Test the ranking of hosts: the best ones in order, ties broken by the seed, and the choice of the lowest ties."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scheduler.decide.ranking import Ranking, SeededTies, lowest, pick, seed_of, seeded_ties


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30, unique=True), st.integers(1, 12))
def test_the_lowest_are_found_of_any_number_of_hosts_also_of_none(ties: list[int], count: int) -> None:
    places = lowest(np.array(ties, dtype=np.uint64), count)
    assert sorted(ties[place] for place in places.tolist()) == sorted(ties)[:count]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=30),
    st.integers(1, 35),
    st.integers(1, 9),
    st.data(),
)
def test_the_best_few_are_the_head_of_the_whole_order(
    hosts: list[tuple[int, int]], count: int, ahead: int, data: st.DataObject
) -> None:
    weights = np.array([float(weight) for weight, _ in hosts])
    # Distinct, as hashes are; equal ones would leave the order to chance.
    ties = np.array([tie * 100 + row for row, (_, tie) in enumerate(hosts)], dtype=np.uint64)
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(hosts), max_size=len(hosts))))
    seeded = seeded_ties(ties, 7)
    whole = sorted(range(len(hosts)), key=lambda row: (-weights[row], seeded[row]))
    ranking = Ranking(np.arange(len(hosts)), weights, SeededTies(ties, 7), look_ahead=ahead)
    assert [row for row, _ in ranking.best(count)] == whole[:count]
    assert [row for row, _ in ranking.best(count, among)] == [row for row in whole if among[row]][:count]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 11), st.none() | st.integers(0, 3), st.integers(1, 6)), max_size=20),
)
def test_the_best_stay_in_order_while_single_hosts_change_their_weights_leave_and_come_back(
    weights: list[int], ahead: int, changes: list[tuple[int, int | None, int]]
) -> None:
    ties = np.array([100 + row for row in range(len(weights))], dtype=np.uint64)
    seeded, feasible = seeded_ties(ties, 7), {row: float(weight) for row, weight in enumerate(weights)}

    def columns() -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        rows = np.array(sorted(feasible), dtype=np.intp)
        return rows, np.array([feasible[row] for row in rows.tolist()])

    ranking = Ranking(*columns(), SeededTies(ties, 7), look_ahead=ahead)
    for row, weight, count in changes:
        ranking.best(1)
        if row >= len(weights):
            continue
        if weight is None:
            feasible.pop(row, None)
        else:
            feasible[row] = float(weight)
        ranking.rows, ranking.weights = columns()
        ranking.put(row, feasible.get(row))
        whole = sorted(feasible, key=lambda row: (-feasible[row], seeded[row]))
        assert ranking.best(count) == [(row, feasible[row]) for row in whole[:count]]


@given(st.text(min_size=1, max_size=20), st.integers(0, 1000), st.integers(1, 50))
def test_a_pick_is_within_the_range(request_id: str, number: int, count: int) -> None:
    assert 0 <= pick(seed_of(request_id), number, count) < count
