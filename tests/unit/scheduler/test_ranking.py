"""Test the choice of the lowest ties among any number of hosts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.decide.ranking import lowest


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30, unique=True), st.integers(1, 12))
def test_the_lowest_are_found_of_any_number_of_hosts_also_of_none(ties: list[int], count: int) -> None:
    places = lowest(np.array(ties, dtype=np.uint64), count)
    assert sorted(ties[place] for place in places.tolist()) == sorted(ties)[:count]
