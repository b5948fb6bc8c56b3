"""Concurrent writers of a placement store: rounds of writes that start together, and waits for row locks."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sqlalchemy import text

from harness.waiting import wait_until
from moorage import ids
from moorage.db.database import Database
from moorage.messages import ReportProviders
from moorage.model import Inventory, ProviderReport
from support.placement_store.builders import Store, call_between, outcome

#: The number of ``ONE`` that fit on a host.
ROOM = 5
ONE = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 3}

Write = Callable[[], object]


def hosts(store: Store, count: int, room: int = ROOM) -> list[str]:
    """Create hosts with room for ``room`` of ``ONE``."""
    uuids = [ids.fresh() for _ in range(count)]
    inventories = {name: Inventory(total=amount * room) for name, amount in ONE.items()}
    reports = tuple(ProviderReport(uuid=uuid, name=uuid, inventories=inventories) for uuid in uuids)
    store.dispatcher.call(ReportProviders(request_id=ids.fresh(), providers=reports))
    return uuids


def race(rounds: Sequence[Sequence[Sequence[Write]]]) -> list[Counter[str]]:
    """Run the writes of each round, one list per thread, all threads at once; return the outcomes of each round."""
    outcomes: list[Counter[str]] = [Counter() for _ in rounds]
    threads = len(rounds[0])
    together = threading.Barrier(threads)
    lock = threading.Lock()
    faults: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            for number, writes in enumerate(rounds):
                together.wait(60)
                for write in writes[thread]:
                    ended = outcome(write)
                    with lock:
                        outcomes[number][ended] += 1
        except BaseException as fault:
            faults.append(fault)
            together.abort()
            raise

    running = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not faults
    return outcomes


def status(store: Store, name: str) -> int:
    """Return a number among the status variables of MariaDB."""
    query = text(f"SHOW GLOBAL STATUS LIKE '{name}'")
    return int(store.database.read(lambda connection: connection.execute(query).one()[1]))


def wait_for_row_lock_wait(store: Store, write: Future[Any]) -> None:
    """Wait until a write in another thread waits for a row lock; fail if it ends without a wait."""
    waits = "Innodb_row_lock_current_waits"
    wait_until(lambda: write.done() or status(store, waits), "a row lock to be waited for", 60.0, interval=0.01)
    assert not write.done()


def beside(database: Database, statement: int, act: Write, write: Write) -> tuple[str, str] | None:
    """Return the outcomes of a write and of another one that begins after so many statements of the first.

    The other one may wait for locks of the first, so it has its own thread. Null: the first has fewer statements.
    """
    begun: list[Future[str]] = []
    with ThreadPoolExecutor(1) as thread:

        def begin() -> None:
            begun.append(thread.submit(outcome, act))
            wait(begun, timeout=0.2)

        with call_between(database, statement, begin):
            written = outcome(write)
    return (written, begun[0].result()) if begun else None
