"""Writers of a placement store that start at the same moment, again and again."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from moorage import errors, ids
from moorage.messages import ReportProviders
from moorage.model import Inventory, ProviderReport
from support.placement_store.builders import Store

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
                    outcome = tried(write)
                    with lock:
                        outcomes[number][outcome] += 1
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


def tried(write: Write) -> str:
    try:
        write()
    except errors.MoorageError as refused:
        return type(refused).__name__
    return "succeeded"
