"""Test that the clients of a benchmark end without an error when the benchmark has been ended."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.bench import load
from harness.waiting import PATIENCE_SECONDS


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


def test_clients_end_their_work_when_the_benchmark_ends_before_its_time() -> None:
    working = threading.Event()

    @contextmanager
    def opened() -> Iterator[Callable[[int], load.Operation]]:
        def operation() -> tuple[str, ...]:
            working.set()
            return ()

        yield lambda _number: operation

    def interrupted() -> dict[str, float]:
        assert working.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load.measure(load.Load(clients=2, processes=0, seconds=1e6, warm_up=0.0), opened, cpu=interrupted)

    assert [thread.name for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name] == []
