"""How a count of failed builds is told: coarsely, so that time that passes is told twice in a half-life at most."""

import math

from hypothesis import given
from hypothesis import strategies as st

from conductor.cell.records.failed_builds import in_steps

counts = st.floats(0.0, 1e6, allow_nan=False)


@given(counts)
def test_what_is_told_is_within_a_quarter_of_the_count_or_nothing_where_the_count_is_less_than_half(
    count: float,
) -> None:
    told = in_steps(count)
    if count < 0.5:
        assert told == 0.0
    else:
        assert 0.8 < told / count < 1.25


@given(counts, counts)
def test_more_failures_are_never_told_as_fewer(one: float, other: float) -> None:
    assert in_steps(min(one, other)) <= in_steps(max(one, other))


@given(st.integers(0, 20))
def test_while_a_count_halves_at_most_three_different_numbers_are_told(power: int) -> None:
    told = {in_steps(2.0**power * 0.5 ** (step / 500)) for step in range(500)}
    assert len(told) <= 3


def test_one_two_and_three_failures_are_told_as_they_are() -> None:
    assert [in_steps(float(count)) for count in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 4.0]
    assert math.isclose(in_steps(5.0), 6.0)
