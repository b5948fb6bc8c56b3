"""Test the rounding of counts of failed builds: while a count fades, the reported one changes seldom."""

import math

from hypothesis import given
from hypothesis import strategies as st

from conductor.cell.records.failed_builds import in_steps

counts = st.floats(0.0, 1e6, allow_nan=False)


@given(counts)
def test_the_reported_count_is_within_a_quarter_of_the_count_and_zero_below_a_half(
    count: float,
) -> None:
    reported = in_steps(count)
    if count < 0.5:
        assert reported == 0.0
    else:
        assert 0.8 < reported / count < 1.25


@given(counts, counts)
def test_the_reported_count_never_falls_when_the_count_rises(one: float, other: float) -> None:
    assert in_steps(min(one, other)) <= in_steps(max(one, other))


@given(st.integers(0, 20))
def test_while_a_count_halves_at_most_three_different_numbers_are_reported(power: int) -> None:
    reported = {in_steps(2.0**power * 0.5 ** (step / 500)) for step in range(500)}
    assert len(reported) <= 3


def test_counts_up_to_four_are_reported_exactly() -> None:
    assert [in_steps(float(count)) for count in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, 4.0]
    assert math.isclose(in_steps(5.0), 6.0)
