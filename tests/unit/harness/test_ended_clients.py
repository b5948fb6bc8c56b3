"""Test that the clients of a benchmark end without an error when the benchmark has been ended."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.bench import load


@contextmanager
def _clients(fault: Exception | None) -> Iterator[Callable[[int], load.Operation]]:
    if fault is not None:
        raise fault
    yield lambda _number: lambda: ()


@pytest.mark.parametrize("fault", [None, OSError("the bus is gone")])
def test_clients_whose_benchmark_is_gone_end_quietly(fault: Exception | None) -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    load._run(_clients, (fault,), range(1), theirs)
