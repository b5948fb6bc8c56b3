"""The drills: each harms or overloads a private cloud in one way, and checks it at the end."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from harness.arguments import Servers
from harness.bench.cloud import is_embedded
from harness.cloud import RunningCloud
from harness.drills import age, contests, faults, upgrade
from harness.drills.cloud import DrillCloud, embedded, unlogged
from harness.drills.faults import Fault
from harness.drills.measures import Measures
from harness.drills.report import Arguments, Report, Say
from harness.drills.workload import Workload
from moorage import errors

#: Runs a drill.
Run = Callable[[Servers, Arguments, Say], Report]

#: Seconds of work before each fault, and after the last one: minimum and maximum.
_BETWEEN = (1.0, 3.0)
#: The share of guests that fail to spawn in the drill of fall-backs.
_FAIL_RATE = 0.3
#: The share of a soak that is its warm-up, and the number of parts of the rest.
_WARM_UP, _PARTS = 0.2, 8


@dataclass(frozen=True)
class Drill:
    """A drill, with its requirement: nothing, services that are processes, or servers of its own."""

    does: str
    run: Run
    needs: Literal["nothing", "processes", "servers"] = "processes"

    def check(self, name: str, servers: Servers) -> None:
        """Refuse to run the drill on servers that do not meet its requirement.

        :raises ConfigurationError: the servers do not meet it.
        """
        if self.needs == "servers" and not servers.programs:
            raise errors.ConfigurationError(reason=f"{name} kills servers, and so needs its own: give --servers")
        if self.needs == "processes" and is_embedded(servers):
            reason = f"{name} harms services, which must be processes: give --servers, or the URLs of both"
            raise errors.ConfigurationError(reason=reason)


def _under_faults(fault: Fault, servers: Servers, given: Arguments, say: Say, *, proxied: bool = True) -> Report:
    """Let clients work while one fault follows another, then check the cloud."""
    chance, times = random.Random(given.seed), 0
    say("starting ten processes")
    with unlogged(), DrillCloud(servers, given.seed, proxied=proxied) as cloud:
        with Workload(cloud, given.clients, given.seed, moves=True) as workload:
            end = time.monotonic() + given.seconds
            while workload.wait(chance.uniform(*_BETWEEN)) and time.monotonic() < end:
                times += 1
                fault(cloud, workload, chance, say)
            say("waiting for the orders under way")
        return workload.judged({"faults": times}, [], say)


def _fall_back(servers: Servers, given: Arguments, say: Say) -> Report:
    """Let clients build on hosts where three of ten guests fail to spawn."""
    say("starting the cloud")
    cloud: RunningCloud | DrillCloud
    if is_embedded(servers):
        cloud = embedded(given.seed, _FAIL_RATE)
    else:
        cloud = DrillCloud(servers, given.seed, proxied=False, fail_rate=_FAIL_RATE)
    with unlogged(), cloud:
        with Workload(cloud, given.clients, given.seed, moves=False) as workload:
            workload.wait(given.seconds)
        findings = [] if workload.counts["further attempts"] else ["no build has gone on to another host"]
        return workload.judged({}, findings, say)


def _soak(servers: Servers, given: Arguments, say: Say) -> Report:
    """Let clients work without any fault, and check that memory, descriptors, threads and times do not grow."""
    say("starting ten processes")
    with DrillCloud(servers, given.seed, proxied=False) as cloud:
        measures = Measures(cloud, tables=False)
        with Workload(cloud, given.clients, given.seed, moves=True) as workload:
            workload.wait(given.seconds * _WARM_UP)
            workload.take_seconds()
            for _ in range(_PARTS):
                if not workload.wait(given.seconds * (1 - _WARM_UP) / _PARTS):
                    break
                measures.sample()
                measures.end_part(workload.take_seconds())
                say(f"{sum(workload.counts.values())} orders; {measures.total_mb:.0f} MB in all")
        return workload.judged({}, measures.grown(0), say, measures.parts)


DRILLS = {
    "race": Drill(
        "16 clients ask two schedulers for the last 5 places of a host, round after round", contests.race, "nothing"
    ),
    "fallback": Drill("builds on hosts where 3 of 10 guests fail to spawn", _fall_back, "nothing"),
    "conflict": Drill("4 schedulers claim on the same hosts, which are 80 % full", contests.conflict, "nothing"),
    "reshape": Drill(
        "agents restarted with nested and flat hosts in turn, while servers are built and moved",
        partial(_under_faults, faults.reshape, proxied=False),
    ),
    "crash": Drill("processes killed and started again", partial(_under_faults, faults.kill_process, proxied=False)),
    "late": Drill(
        "processes paused, and connections to the broker cut: messages are late, lost and delivered twice",
        partial(_under_faults, faults.delay_messages),
    ),
    "silence": Drill(
        "connections to database and broker that stay open and transmit nothing",
        partial(_under_faults, faults.silence_connections),
    ),
    "partition": Drill("processes and cells cut off for 3 to 20 s", partial(_under_faults, faults.partition)),
    "failover": Drill(
        "database and broker, or nodes of their clusters, killed and started again",
        partial(_under_faults, faults.kill_server, proxied=False),
        "servers",
    ),
    "age": Drill("a small cloud's month in minutes: memory, descriptors, tables and times stay flat", age.run),
    "upgrade": Drill(
        "services of another release (--former) replaced by this one, one after the other, and back", upgrade.run
    ),
    "soak": Drill("work without faults: memory, descriptors, threads and times stay flat", _soak),
}
