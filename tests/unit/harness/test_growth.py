"""Test that figures that grow are found, and that figures that only go up and down are not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.drills.growth import Allowance, trend
from harness.drills.measures import ALLOWED

TENTH = Allowance(0.1, 4.0)
PARTS = 9


@settings(deadline=None)
@given(start=st.floats(10, 1000), growth=st.floats(1.5, 10), noise=st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_a_steady_growth_beyond_the_allowance_is_found_in_spite_of_noise(
    start: float, growth: float, noise: list[float]
) -> None:
    # At least three times the allowance for the first figure, and noise of a sixteenth of that.
    total = growth * 2 * (start * TENTH.share + TENTH.amount)
    figures = [start + total * part / (PARTS - 1) + total / 16 * off for part, off in enumerate(noise)]
    assert trend(figures).exceeds(TENTH)


@settings(deadline=None)
@given(start=st.floats(10, 1000), noise=st.lists(st.floats(-1, 1), min_size=9, max_size=9))
def test_figures_within_half_the_allowance_never_grow(start: float, noise: list[float]) -> None:
    allowed = start * TENTH.share + TENTH.amount
    assert not trend([start + allowed / 2 * 0.9 * off for off in noise]).exceeds(TENTH)


#: The level of flat figures, and their standard deviation as a share of it: greater than what is seen.
FLAT = {
    "memory_mb": (100.0, 0.03),
    "descriptors": (25.0, 0.1),
    "threads": (60.0, 0.05),
    "rows": (200.0, 0.1),
    "data_mb": (4.0, 0.1),
    "seconds": (0.5, 0.15),
}


@pytest.mark.parametrize("what", list(ALLOWED))
def test_noisy_flat_figures_are_seldom_taken_for_growing_ones(what: str) -> None:
    drawn = random.Random(16)
    level, deviation = FLAT[what]
    # One figure in ten is half as much again.
    series = [
        [drawn.gauss(1.0, deviation) * level * (1.5 if drawn.random() < 0.1 else 1.0) for _ in range(PARTS)]
        for _ in range(2000)
    ]
    found = sum(trend(figures).exceeds(ALLOWED[what]) for figures in series)
    assert found / len(series) < 0.01


@pytest.mark.parametrize(
    ("what", "figures"),
    [
        # A leak of 4 kB at each of 800 orders in a tenth of the month.
        ("memory_mb", [100 + 3.2 * part for part in range(PARTS)]),
        # A connection that is not closed, at each of the dead hosts.
        ("descriptors", [20 + 2 * part for part in range(PARTS)]),
        ("threads", [60, 60, 66, 66, 72, 72, 78, 78, 84]),
        # A row that each build leaves.
        ("rows", [100 * part for part in range(PARTS)]),
        # A statement that reads all former rows as well; a busy moment in between.
        ("seconds", [0.3, 0.35, 0.4, 1.9, 0.5, 0.55, 0.6, 0.65, 0.7]),
    ],
)
def test_leaks_are_found(what: str, figures: list[float]) -> None:
    assert trend(figures).exceeds(ALLOWED[what])


def test_a_busy_moment_at_the_end_is_no_growth() -> None:
    found = trend([0.3, 0.31, 0.3, 0.29, 0.3, 0.31, 0.3, 2.0, 3.0])
    assert not found.exceeds(ALLOWED["seconds"])
    assert found.growth < 0.1


def test_a_trend_needs_two_figures() -> None:
    with pytest.raises(ValueError, match="at least two"):
        trend([1.0])
