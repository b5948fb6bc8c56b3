"""Test sets of names by row: frozen ones never change, and names that no row has any more use no memory."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.view.bitsets import BitsetColumns, Bitsets

sets_of_names = st.frozensets(st.integers(0, 300), max_size=60)
steps = st.lists(st.tuples(st.integers(0, 3), sets_of_names, st.booleans()), max_size=25)


def names_of(row: int, bitsets: Bitsets, every: set[str]) -> set[str]:
    return {name for name in every if bitsets.has(name)[row]}


@given(steps)
def test_each_snapshot_keeps_the_sets_that_were_put_before_it(
    steps: list[tuple[int, frozenset[int], bool]],
) -> None:
    columns = BitsetColumns()
    columns.resize(4)
    truth: list[frozenset[str]] = [frozenset()] * 4
    frozen = [(columns.frozen(), list(truth))]
    for row, numbers, is_shown in steps:
        truth[row] = frozenset(f"name{number}" for number in numbers)
        columns.put(row, truth[row])
        if is_shown:
            frozen.append((columns.frozen(), list(truth)))
    every = {f"name{number}" for _, numbers, _ in steps for number in numbers}
    for bitsets, expected in frozen:
        assert [names_of(row, bitsets, every) for row in range(4)] == [set(names) for names in expected]


def test_only_names_that_a_row_has_use_memory() -> None:
    columns = BitsetColumns()
    columns.resize(2)
    columns.put(1, frozenset({"stays"}))
    for number in range(1_000):
        columns.put(0, frozenset({f"aggregate{number}"}))
    assert len(columns.frozen().words) == 1
    assert columns.frozen().has("stays").tolist() == [False, True]
    assert columns.frozen().has("aggregate999").tolist() == [True, False]
    assert not columns.frozen().has("aggregate1").any()
