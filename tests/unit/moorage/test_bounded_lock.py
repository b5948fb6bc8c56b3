"""Test that waiting is bounded for a lock whose holder waits for a silent database."""

import contextvars
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moorage import context, errors
from moorage.db.database import BoundedLock, Database
from placement_store.db.names import ResourceClassNames
from scheduler.registry.aggregates.reader import AggregateReader
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache

PATIENCE = 0.05


def not_free(seconds: float) -> errors.Overloaded:
    return errors.Overloaded(reason=f"not free for {seconds} s")


def test_waiting_for_a_lock_ends_with_an_error_after_its_patience() -> None:
    lock = BoundedLock(not_free, PATIENCE)

    with ThreadPoolExecutor(1) as other, lock.held():
        fault = other.submit(lambda: lock.held().__enter__()).exception(10)

    assert isinstance(fault, errors.Overloaded)
    assert fault.reason == f"not free for {PATIENCE} s"
    # The failed wait has left nothing behind.
    with lock.held():
        pass


def test_a_lock_is_released_when_the_work_under_it_fails() -> None:
    lock = BoundedLock(not_free, PATIENCE)

    with pytest.raises(ZeroDivisionError), lock.held():
        raise ZeroDivisionError
    with lock.held():
        pass


def test_the_writers_lock_of_a_file_names_the_file_and_does_not_keep_the_first_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.sqlite"
    first, second = Database(url, "first"), Database(url, "second")
    lock, of_first = second._writer_lock(), weakref.ref(first)
    first.close()
    del first
    gc.collect()

    assert of_first() is None
    with ThreadPoolExecutor(1) as other, lock.held(), context.bound(deadline=time.monotonic() + PATIENCE):
        of_caller = contextvars.copy_context()
        fault = other.submit(lambda: of_caller.run(lambda: lock.held().__enter__())).exception(10)

    assert isinstance(fault, errors.Overloaded)
    assert f"has kept the database {tmp_path}/one.sqlite" in fault.reason
    second.close()


class _Silent(Database):
    """A database that answers no read until it is released."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}", "main")
        self.asked = threading.Event()
        self.released = threading.Event()

    def read(self, work: object) -> object:  # type: ignore[override]
        self.asked.set()
        self.released.wait(30)
        raise errors.StoreUnavailable(schema="main", reason="silent")


@pytest.mark.parametrize("reader", ["feed", "comparison", "refused providers", "aggregates"])
def test_a_thread_that_waits_for_another_read_of_a_silent_database_gets_an_error_before_the_read_ends(
    tmp_path: Path, reader: str
) -> None:
    database = _Silent(tmp_path / "main.sqlite")
    follower = Follower(database, ResourceClassNames(database), HostCache(), patience=PATIENCE)
    aggregates = AggregateReader(database, patience=PATIENCE)
    read = {
        "feed": lambda: follower.follow(follower.now()),
        "comparison": lambda: follower.catch_up(follower.now()),
        "refused providers": lambda: follower.refresh([]),
        "aggregates": lambda: aggregates.read(follower.now()),
    }[reader]
    with ThreadPoolExecutor(2) as threads:
        try:
            holder = threads.submit(read)
            assert database.asked.wait(10)
            fault = threads.submit(read).exception(10)
            assert not holder.done()
        finally:
            database.released.set()
    database.close()

    assert isinstance(fault, errors.StoreUnavailable)
    assert f"{PATIENCE:g} s" in fault.reason
