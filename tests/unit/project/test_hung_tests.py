"""Test the watch over hanging tests: when a test counts as hanging, and how it is ended."""

from pathlib import Path

import pytest
from support.pytest_plugins.hung_tests import Sample, hangs

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("all_threads", "main_thread", "expected"),
    [
        pytest.param(0.0, 0.0, True, id="nothing runs"),
        pytest.param(12.0, 0.0, True, id="the test is blocked beside an idle cloud"),
        pytest.param(12.0, 1.0, False, id="the test polls a cloud that works little"),
        pytest.param(40.0, 0.0, False, id="the test waits for threads that work"),
    ],
)
def test_a_test_hangs_only_where_its_threads_neither_run_nor_wait_for_a_processor(
    all_threads: float, main_thread: float, expected: bool
) -> None:
    first = Sample(at=100.0, threads={(1, 1): 50.0}, main_thread=5.0)
    last = Sample(at=160.0, threads={(1, 1): 50.0 + all_threads}, main_thread=5.0 + main_thread)

    assert hangs([first, last]) is expected


def test_the_time_of_an_ended_thread_is_not_subtracted_from_that_of_others() -> None:
    samples = [
        Sample(at=100.0, threads={(1, 2): 40.0}, main_thread=0.0),
        Sample(at=130.0, threads={(1, 3): 20.0}, main_thread=0.0),
        Sample(at=160.0, threads={(1, 3): 41.0}, main_thread=0.0),
    ]

    assert not hangs(samples)


@pytest.mark.parametrize(("servers", "expected"), [(6.0, True), (50.0, False)])
def test_a_test_that_waits_for_a_server_at_work_does_not_hang(servers: float, expected: bool) -> None:
    first = Sample(at=100.0, threads={}, main_thread=0.0, servers={(2, 2): 7.0})
    last = Sample(at=160.0, threads={}, main_thread=0.0, servers={(2, 2): 7.0 + servers})

    assert hangs([first, last]) is expected


def test_a_test_that_begins_and_ends_processes_does_not_hang() -> None:
    processes: list[frozenset[int]] = [frozenset({1}), frozenset({1, 2}), frozenset({1})]
    samples = [
        Sample(at=30.0 * number, threads={}, main_thread=0.0, processes=of_them)
        for number, of_them in enumerate(processes)
    ]

    assert not hangs(samples)


def test_a_test_that_hangs_is_ended_with_the_stacks_of_all_threads(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    tests = Path(__file__).parents[2]
    pytester.makeconftest(
        f"""
        import sys
        sys.path.insert(0, {str(tests)!r})
        from support.pytest_plugins import hung_tests
        from support.pytest_plugins.hung_tests import pytest_runtest_protocol

        hung_tests.IDLE_SECONDS, hung_tests._SAMPLE_SECONDS = 1.0, 0.2
        hung_tests.WATCH.start()
        """
    )
    pytester.makepyfile(
        """
        import threading

        def test_that_waits_for_ever():
            threading.Event().wait()

        def test_after_it():
            pass
        """
    )

    result = pytester.runpytest_subprocess("-p", "pytest_timeout", "--timeout", "100", timeout=60)

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Stack of hung-tests*"])
    result.stdout.fnmatch_lines(["*test_that_waits_for_ever has done nothing for 1 s"])
