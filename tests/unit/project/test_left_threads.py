"""Test the check for threads that a test leaves behind."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def checked(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from support.pytest_plugins import left_threads
        from support.pytest_plugins.left_threads import no_thread_is_left

        left_threads.GRACE_SECONDS = 0.3
        """
    )


def test_a_test_that_leaves_a_thread_behind_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor

        def test_that_leaves_a_thread():
            threading.Thread(target=threading.Event().wait, daemon=True).start()

        def test_that_leaves_a_pool():
            global pool
            pool = ThreadPoolExecutor(2)
            pool.submit(int).result()

        def test_that_leaves_none():
            with ThreadPoolExecutor(2) as threads:
                threads.submit(int).result()
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:schemathesis", timeout=60)

    result.assert_outcomes(passed=3, errors=2)
    result.stdout.fnmatch_lines(["*1 thread(s) left behind*"])


def test_a_pool_that_was_there_before_a_test_may_grow_meanwhile(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import pytest

        @pytest.fixture(scope="module")
        def pool():
            with ThreadPoolExecutor(2) as threads:
                threads.submit(int).result()
                yield threads

        def test_that_shares_it(pool):
            global shared
            shared = pool

        def test_beside_which_it_grows():
            busy = threading.Event()
            shared.submit(busy.wait)
            shared.submit(busy.set).result()
            assert len(shared._threads) == 2
        """
    )

    pytester.runpytest_subprocess("-p", "no:schemathesis", timeout=60).assert_outcomes(passed=2)
