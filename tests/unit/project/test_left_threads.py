"""Test the check for threads that a test leaves behind."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def test_a_test_fails_if_it_leaves_a_thread_behind_that_belongs_to_no_earlier_pool(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from support.pytest_plugins import left_threads
        from support.pytest_plugins.left_threads import no_thread_is_left

        left_threads.GRACE_SECONDS = 0.3
        """
    )
    pytester.makepyfile(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import pytest

        @pytest.fixture(scope="module")
        def shared():
            with ThreadPoolExecutor(2) as threads:
                threads.submit(int).result()
                yield threads

        def test_that_leaves_a_thread():
            threading.Thread(target=threading.Event().wait, daemon=True).start()

        def test_that_leaves_a_pool():
            global pool
            pool = ThreadPoolExecutor(2)
            pool.submit(int).result()

        def test_that_leaves_none():
            with ThreadPoolExecutor(2) as threads:
                threads.submit(int).result()

        def test_that_begins_a_shared_pool(shared):
            global grows
            grows = shared

        def test_during_which_the_shared_pool_grows():
            busy = threading.Event()
            grows.submit(busy.wait)
            grows.submit(busy.set).result()
            assert len(grows._threads) == 2
        """
    )

    result = pytester.runpytest_subprocess(timeout=60)

    result.assert_outcomes(passed=5, errors=2)
    result.stdout.fnmatch_lines(["*1 thread(s) left behind*"])
    result.stdout.fnmatch_lines(["*ERROR*test_that_leaves_a_thread*", "*ERROR*test_that_leaves_a_pool*"])
