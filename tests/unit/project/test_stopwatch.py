"""Test that the times of tests do not depend on other work of the machine."""

import time

import pytest
from support.processes.stopwatch import Stopwatch, Waits


def test_what_sleeps_is_counted() -> None:
    watch = Stopwatch(dict)
    time.sleep(0.2)
    assert 0.2 <= watch.seconds <= watch.elapsed


def test_the_longest_wait_of_one_thread_for_a_processor_is_not_counted() -> None:
    before: Waits = {(1, 1): 0.0, (1, 2): 50.0}
    after: Waits = {(1, 1): 3.0, (1, 2): 51.0, (2, 3): 2.0}
    readings = [before, after]
    watch = Stopwatch(lambda: readings.pop(0))

    seconds = watch.seconds

    assert seconds == pytest.approx(watch.elapsed - 3.0, abs=0.5)


def test_the_waits_of_this_machine_are_read() -> None:
    watch = Stopwatch()
    assert watch.seconds <= watch.elapsed
