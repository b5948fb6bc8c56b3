"""Test the kernel of the simulation: a seeded order, a virtual clock, and crashes without clean-up."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulation.machine.kernel import KERNEL, Deadlock
from harness.simulation.machine.primitives import Local, Lock, RLock, monotonic

SEEDS = st.integers(0, 10_000)


@pytest.fixture(autouse=True)
def fresh_kernel() -> None:
    KERNEL.reset("test")


def order_of(seed: object) -> list[str]:
    """Return the order in which three tasks that pause have run."""
    KERNEL.reset(seed)
    order: list[str] = []

    def steps(name: str) -> Callable[[], None]:
        def run() -> None:
            for number in range(3):
                order.append(f"{name}{number}")
                KERNEL.pause()

        return run

    for name in "abc":
        KERNEL.start(steps(name), name)
    KERNEL.sleep(1.0)
    return order


@given(SEEDS)
@settings(deadline=None, max_examples=30)
def test_a_seed_determines_the_order_and_each_task_resumes_where_it_paused(seed: int) -> None:
    order = order_of(seed)
    trace = KERNEL.trace
    assert order == order_of(seed)
    assert trace == KERNEL.trace
    for name in "abc":
        assert [step for step in order if step.startswith(name)] == [f"{name}{number}" for number in range(3)]


def test_other_seeds_have_other_orders() -> None:
    assert len({tuple(order_of(seed)) for seed in range(20)}) > 5


def test_a_trace_does_not_depend_on_the_folder_of_the_files() -> None:
    traces = set()
    for folder in ("/tmp/moorage-a_1", "/dev/shm/moorage-simulation-3-x/moorage-b2"):
        KERNEL.reset("test")
        KERNEL.note(f"another writer has kept the database {folder}/moorage.sqlite for 0.9 s")
        traces.add(KERNEL.trace)
    assert len(traces) == 1


def test_the_clock_jumps_to_the_next_wake_up_time() -> None:
    woken: list[tuple[str, float]] = []

    def sleeper(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            KERNEL.sleep(seconds)
            woken.append((name, KERNEL.now))

        return run

    begun = time.perf_counter()
    KERNEL.start(sleeper("late", 3600.0))
    KERNEL.start(sleeper("early", 60.0))
    KERNEL.sleep(7200.0)
    assert woken == [("early", 60.0), ("late", 3600.0)]
    assert KERNEL.now == 7200.0
    assert time.perf_counter() - begun < 60.0


def test_a_lock_admits_one_task_and_waiting_for_it_ends_at_the_timeout() -> None:
    lock, inside, most = Lock(), 0, 0
    refused: list[float] = []

    def work() -> None:
        nonlocal inside, most
        if not lock.acquire(timeout=25.0):
            refused.append(KERNEL.now)
            return
        inside += 1
        most = max(most, inside)
        KERNEL.sleep(10.0)
        inside -= 1
        lock.release()

    for _ in range(4):
        KERNEL.start(work)
    KERNEL.sleep(100.0)
    assert most == 1
    assert refused == [25.0]
    assert not lock.locked()
    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)


def test_an_rlock_can_be_acquired_again_only_by_its_holder() -> None:
    lock = RLock()
    taken: list[bool] = []
    with lock, lock:
        KERNEL.start(lambda: taken.append(lock.acquire(timeout=1.0)))
        KERNEL.sleep(5.0)
    assert taken == [False]
    KERNEL.start(lambda: taken.append(lock.acquire(timeout=1.0)))
    KERNEL.sleep(5.0)
    assert taken == [False, True]
    with pytest.raises(RuntimeError, match="un-acquired"):
        lock.release()


def test_local_values_belong_to_one_task() -> None:
    class Counted(Local):
        def __init__(self, first: int) -> None:
            self.count = first

    values, seen = Counted(7), list[int]()

    def count() -> None:
        values.count += 1
        KERNEL.pause()
        seen.append(values.count)

    values.count = 100
    KERNEL.start(count)
    KERNEL.start(count)
    KERNEL.sleep(1.0)
    assert seen == [8, 8]
    assert values.count == 100


def test_a_crash_ends_all_tasks_of_a_process_without_clean_up() -> None:
    done: list[str] = []

    def work(name: str) -> Callable[[], None]:
        def run() -> None:
            try:
                KERNEL.sleep(5.0)
                done.append(name)
            finally:
                done.append(f"{name} is cleaned up after")

        return run

    KERNEL.start(work("victim"), "victim")
    KERNEL.start(work("other"), "other")
    KERNEL.sleep(1.0)
    KERNEL.kill("victim")
    KERNEL.start(work("started when it is dead"), "victim")
    KERNEL.sleep(10.0)
    assert done == ["other", "other is cleaned up after"]
    KERNEL.revive("victim")
    KERNEL.start(work("next life"), "victim")
    KERNEL.sleep(10.0)
    assert done[2:] == ["next life", "next life is cleaned up after"]


@pytest.mark.parametrize("points", [1, 2, 3])
def test_a_crash_happens_at_exactly_the_requested_switching_point(points: int) -> None:
    passed: list[int] = []

    def work() -> None:
        for number in range(5):
            passed.append(number)
            KERNEL.pause()

    KERNEL.start(work, "victim")
    KERNEL.at_point("victim", points, lambda: KERNEL.kill("victim"))
    KERNEL.sleep(1.0)
    assert passed == list(range(points))


def test_a_lock_of_a_previous_history_does_not_wake_a_task_of_the_same_name() -> None:
    former = Lock()
    former.acquire()
    KERNEL.start(former.acquire, "process")
    KERNEL.sleep(1.0)
    KERNEL.reset("test")
    woken: list[bool] = []
    KERNEL.start(lambda: woken.append(KERNEL.block(KERNEL.now + 5.0)), "process")
    KERNEL.sleep(1.0)
    former.release()
    KERNEL.sleep(10.0)
    assert woken == [False]


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("kind", [Lock, RLock])
def test_the_locks_of_a_process_are_released_when_it_crashes(kind: type[Lock | RLock], is_frozen: bool) -> None:
    lock = kind()

    def work() -> None:
        lock.acquire()
        while True:
            KERNEL.pause()
            KERNEL.sleep(0.1)

    KERNEL.start(work, "victim")
    KERNEL.sleep(1.0)
    if is_frozen:
        KERNEL.freeze("victim")
        KERNEL.sleep(1.0)
    assert not lock.acquire(timeout=1.0)
    KERNEL.kill("victim")
    assert lock.acquire(timeout=10.0)
    lock.release()
    assert lock.acquire(blocking=False)


def test_a_frozen_process_resumes_where_it_was_and_finds_what_arrived_meanwhile() -> None:
    done: list[tuple[str, float]] = []
    lock = Lock()
    lock.acquire()

    def work(name: str) -> None:
        KERNEL.sleep(1.0)
        done.append((name, KERNEL.now))

    def wait() -> None:
        assert lock.acquire(timeout=60.0)
        done.append(("woken", KERNEL.now))

    KERNEL.start(lambda: work("frozen"), "frozen")
    KERNEL.start(wait, "frozen")
    KERNEL.start(lambda: work("other"), "other")
    KERNEL.sleep(0.5)
    KERNEL.freeze("frozen")
    lock.release()
    KERNEL.start(lambda: done.append(("arrived", KERNEL.now)), "frozen")
    KERNEL.sleep(9.5)
    assert done == [("other", 1.0)]
    KERNEL.thaw("frozen")
    KERNEL.sleep(1.0)
    assert sorted(done[1:]) == [("arrived", 10.0), ("frozen", 10.0), ("woken", 10.0)]


def test_no_other_task_runs_in_an_atomic_block() -> None:
    ran: list[float] = []
    KERNEL.start(lambda: ran.append(KERNEL.now))
    with KERNEL.atomic():
        KERNEL.pause()
        KERNEL.sleep(1.0)
        assert not ran
        with pytest.raises(RuntimeError, match="not to be interrupted"):
            KERNEL.block()
    KERNEL.sleep(1.0)
    assert ran == [0.0]


def test_a_deadlock_is_raised_in_the_main_task_and_names_the_waiting_task() -> None:
    lock = Lock()
    lock.acquire()
    KERNEL.start(lock.acquire, "stuck", "waiter")
    with pytest.raises(Deadlock, match="waiter of stuck"):
        lock.acquire()


def test_an_error_of_a_task_is_raised_in_the_waiting_main_task() -> None:
    def fail() -> None:
        raise ValueError("broken")

    KERNEL.start(fail)
    with pytest.raises(ValueError, match="broken"):
        KERNEL.sleep(1.0)


def test_the_monotonic_clock_of_the_simulation_is_virtual() -> None:
    before = monotonic()
    KERNEL.sleep(2.5)
    assert monotonic() - before == 2.5
