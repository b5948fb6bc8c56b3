"""Test the simulation behind the packing weigher: it is repeatable, and measures the formula of the weigher."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler.builders import host_cache, host_row, provider, spec

from harness.bench import packing
from harness.bench.packing import MIXES, stream
from moorage.testing.builders import inventory
from weighers.packing import PackingWeigher

CAPACITY = np.array([[32.0, 64.0, 64.0], [64.0, 128.0, 256.0]])


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 32)), min_size=3, max_size=3))
def test_the_weigher_ranks_hosts_like_the_measured_formula(used: list[tuple[int, int]]) -> None:
    # A host that uses one class also uses the other.
    pairs = [pair if all(pair) else (0, 0) for pair in used]
    rows = [host_row(number) for number in range(3)]
    providers = [
        provider(
            row,
            VCPU=inventory(int(CAPACITY[0, number]), used=pairs[number][0]),
            MEMORY_MB=inventory(int(CAPACITY[1, number]), used=pairs[number][1]),
        )
        for number, row in enumerate(rows)
    ]
    scores = PackingWeigher({}).scores(host_cache(rows, providers).snapshot(), spec(vcpus=2, memory_mb=4, root_gb=0))
    formula = packing.FORMULAS["mean share, open first"]
    measured = formula(np.array(pairs, dtype=np.float64).T, CAPACITY, np.array([2.0, 4.0]))
    assert np.array_equal(np.argsort(scores.round(9), kind="stable"), np.argsort(measured.round(9), kind="stable"))


def test_the_same_seed_gives_the_same_figures() -> None:
    first, second = (list(packing.measure(8, 30, [0.5], 1)) for _ in range(2))
    assert first == second
    assert {(figures.mix, figures.formula) for figures in first} == {
        (mix, formula) for mix in MIXES for formula in packing.FORMULAS
    }


def test_nothing_is_refused_if_there_is_room_for_all() -> None:
    for figures in packing.measure(16, 30, [0.05], 1):
        assert figures.refused_percent == figures.refused_cpu_percent == 0.0
        assert 0 < figures.hosts_open_percent <= 100
        assert 0 <= figures.large_fit_percent <= 100


def test_servers_arrive_in_order_and_leave_after_their_arrival() -> None:
    for mix in MIXES.values():
        servers = stream(mix, CAPACITY.sum(axis=1) * 1000, 0.8, 200, seed=3)
        assert (np.diff(servers.comes) >= 0).all()
        assert (servers.goes > servers.comes).all()
        assert len(servers.requested) == servers.first + 200
