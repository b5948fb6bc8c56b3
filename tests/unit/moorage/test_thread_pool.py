"""Test the thread pool on a machine that refuses threads."""

import threading

import pytest

from moorage.thread_pool import NoThread, ThreadPool


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every further thread."""

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


@pytest.mark.usefixtures("refuse")
def test_work_that_the_pool_refuses_for_want_of_a_thread_is_never_done() -> None:
    done: list[int] = []
    with ThreadPool(2) as threads, pytest.raises(NoThread):
        threads.submit(done.append, 1)
    assert done == []


@pytest.mark.usefixtures("refuse")
def test_work_is_done_once_and_at_once_where_the_pool_has_no_thread() -> None:
    done: list[int] = []
    with ThreadPool(2) as threads:
        assert threads.submit_or_do(done.append, 1).result() is None
        assert threads.submit_or_do(int, "7").result() == 7
        failed = threads.submit_or_do(int, "seven")
    assert done == [1]
    with pytest.raises(ValueError, match="seven"):
        failed.result()


def test_work_for_a_pool_that_was_shut_down_is_refused_and_not_done_here() -> None:
    done: list[int] = []
    threads = ThreadPool(2)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        threads.submit_or_do(done.append, 1)
    assert done == []
