"""Benchmark of an idle cloud: the cost of heartbeats, reports, sweeps and comparisons while there are no requests."""

import time
from dataclasses import dataclass

from harness.bench.cloud import BenchCloud

#: The common prefix of the names of the processes that run the hosts; in a real cloud these have processors of their
#: own.
_AGENTS = "compute"
#: The processor time of this process is not counted: it only measures the others.
_ONESELF = "clients"


@dataclass(frozen=True)
class IdleResult:
    """The result of a run; the field names are those of `moorage bench idle -f json`.

    The shares are of one processor: for each process, and in total without the agents.
    """

    hosts: int
    seconds: float
    cpu_percent: float
    cpu_percent_by_process: dict[str, float]
    rss_mb: dict[str, int]


def measure(cloud: BenchCloud, hosts: int, settle: float, seconds: float) -> IdleResult:
    """Let a cloud settle, leave it idle for some seconds, and return the processor time that it has used."""
    cloud.catch_up()
    time.sleep(settle)
    began, before = time.monotonic(), cloud.cpu_seconds()
    time.sleep(seconds)
    passed, after = time.monotonic() - began, cloud.cpu_seconds()
    shares = {name: 100 * (after[name] - before.get(name, 0.0)) / passed for name in after if name != _ONESELF}
    return IdleResult(
        hosts=hosts,
        seconds=round(passed, 1),
        cpu_percent=round(sum(share for name, share in shares.items() if not name.startswith(_AGENTS)), 2),
        cpu_percent_by_process={name: round(share, 2) for name, share in shares.items()},
        rss_mb=cloud.memory_mb(),
    )
