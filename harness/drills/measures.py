"""Figures of a cloud of processes over time: memory, descriptors, threads, tables, and the duration of orders.

The time is divided into equal parts. The figure of a part is the median of several samples, so that it does not depend
on whether a sample was taken just before or just after pruning.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import psutil
from sqlalchemy import Connection, func, select

from conductor.schema import CELL_METADATA, CONDUCTOR_METADATA, cell_attempts, cell_migrations, conductor_migrations
from harness.bench.usage import memory_mb
from harness.drills.cloud import DrillCloud
from harness.drills.growth import Allowance, trend
from placement_store.schema import METADATA

#: The allowed growth, by the first word of a figure's name. After its warm-up a process still loads modules that it
#: rarely needs, and its allocator keeps memory that was once used: a tenth of its memory, or a few MB. Descriptors and
#: threads belong to pools, which are full once all their members were in use at the same time. Tables follow the number
#: of living servers, which itself varies by a tenth. Times depend on the other work of the machine.
ALLOWED: Mapping[str, Allowance] = {
    "memory_mb": Allowance(0.1, 4.0),
    "descriptors": Allowance(0.2, 5.0),
    "threads": Allowance(0.2, 5.0),
    "rows": Allowance(0.2, 40.0),
    "data_mb": Allowance(0.2, 2.0),
    "seconds": Allowance(0.25, 0.1),
}
#: The moves of a server, and their attempts, are on record as long as the server exists. For servers that live for
#: weeks they add up: two for each maintenance of their hosts.
_ON_RECORD_WITH_SERVERS = {
    f"rows {table.name}": Allowance(0.2, 120.0) for table in (cell_migrations, cell_attempts, conductor_migrations)
}
#: The minimum number of orders of a kind in each part: with fewer, the median is not judged.
_FEWEST = 5
_TABLES = [table for metadata in (METADATA, CONDUCTOR_METADATA, CELL_METADATA) for table in metadata.sorted_tables]


class Measures:
    """The figures of a cloud, by name, in each part of its time so far.

    A figure has one value for each part in which it was measured. Processes that were started again are left out,
    because their figures start again.

    :param tables: whether tables are measured too; without retention they grow with all activity.
    """

    def __init__(self, cloud: DrillCloud, *, tables: bool = True) -> None:
        self._cloud = cloud
        self._tables = tables
        self._pids = {role: process.pid for role, process in cloud.processes.items()}
        self._samples: defaultdict[str, list[float]] = defaultdict(list)
        self.parts: defaultdict[str, list[float]] = defaultdict(list)
        self._orders: defaultdict[str, list[int]] = defaultdict(list)

    def sample(self) -> None:
        """Take one sample of all figures except the durations of orders.

        :raises StoreUnavailable: the database cannot be reached.
        """
        tables = self._cloud.database.read(_of_tables) if self._tables else {}
        for name, figure in {**self._of_processes(), **tables}.items():
            self._samples[name].append(figure)

    def end_part(self, seconds: Mapping[str, Sequence[float]]) -> None:
        """End a part of the time, in which orders ended that took so many seconds, by kind."""
        for name, samples in self._samples.items():
            self.parts[name].append(round(median(samples), 1))
        self._samples.clear()
        for kind, taken in seconds.items():
            self.parts[f"seconds {kind}"].append(round(median(taken), 3))
            self._orders[f"seconds {kind}"].append(len(taken))

    @property
    def total_mb(self) -> float:
        """The memory of all processes in the last part."""
        return sum(figures[-1] for name, figures in self.parts.items() if name.startswith("memory_mb"))

    def grown(self, first: int) -> list[str]:
        """Return the figures that have grown by more than is allowed, without their ``first`` parts."""
        found: list[str] = []
        for name, figures in sorted(self.parts.items()):
            judged, allowed = figures[first:], _ON_RECORD_WITH_SERVERS.get(name, ALLOWED[name.split()[0]])
            if len(judged) < 4 or min(self._orders.get(name, [_FEWEST])) < _FEWEST:
                continue
            of_it = trend(judged)
            if of_it.exceeds(allowed):
                found.append(f"{name} has grown by {of_it.growth:.3g}, tau {of_it.tau:.2f}: {figures}")
        return found

    def _of_processes(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        for role, process in list(self._cloud.processes.items()):  # a process may be killed at the same time
            if process.pid == self._pids.get(role):
                with contextlib.suppress(psutil.NoSuchProcess):
                    figures |= {f"{what} {role}": figure for what, figure in _of_process(process.pid)}
        return figures


def _of_process(pid: int) -> Iterator[tuple[str, float]]:
    """Yield the figures of a process.

    :raises NoSuchProcess: the process has ended.
    """
    yield "memory_mb", memory_mb(pid)
    yield "descriptors", psutil.Process(pid).num_fds()
    yield "threads", psutil.Process(pid).num_threads()


def _of_tables(connection: Connection) -> dict[str, float]:
    rows = {f"rows {table.name}": connection.scalar(select(func.count()).select_from(table)) or 0 for table in _TABLES}
    size = connection.exec_driver_sql(
        "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = DATABASE()"
    ).scalar_one()
    return {**rows, "data_mb": round(float(size) / 1e6, 1)}
