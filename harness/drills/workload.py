"""The work of a cloud during a drill: clients that build servers, change some of them, and delete them."""

import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

from harness.audit import judge
from harness.cloud import RunningCloud
from harness.drills.cloud import DrillCloud, guests
from harness.drills.orders import Server, Stuck, WorkRecord
from harness.drills.report import Report, Say
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Client
from moorage.cli import lists
from moorage.messages import ListOperations

#: Seconds for a call. If its answer is lost, the call is repeated with the same request id.
CALL_SECONDS = 10.0
#: Seconds between two checks of the amounts of all hosts.
_LOOK_SECONDS = 1.0
#: Seconds until nothing is left of ended work: the lease of a killed process, a report, a cleaning, several times over.
_TIDY_SECONDS = 60.0


class WorkingClients(WorkRecord, ABC):
    """Threads that work on a cloud until they are stopped, and one thread that looks for over-commitments meanwhile."""

    def __init__(self, cloud: RunningCloud | DrillCloud, clients: int) -> None:
        super().__init__()
        self._cloud = cloud
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(number,), name=f"client-{number}") for number in range(clients)
        ]
        self._threads.append(threading.Thread(target=self._look, name="over-commit"))

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            # The started ones would work on the cloud while it is stopped, and keep this process from ending.
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Let each client finish its current work, and stop."""
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():  # not every one may have been started
                thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait; return False as soon as there is a finding."""
        end = time.monotonic() + seconds
        while not self.findings and (left := end - time.monotonic()) > 0:
            self._ended.wait(min(left, 0.1))
        return not self.findings

    def judged(
        self,
        figures: Mapping[str, object],
        findings: Sequence[str],
        say: Say,
        series: Mapping[str, Sequence[float]] = MappingProxyType({}),
    ) -> Report:
        """Return the report on the cloud, whose servers have all been deleted, with these further findings."""
        say("looking for what is left")
        left: list[str] = []

        def clean() -> bool:
            left[:] = self._left()
            return not left

        # What is left after this time is in the report.
        with contextlib.suppress(TimeoutError):
            wait_until(clean, seconds=_TIDY_SECONDS, interval=0.2, longest=1.0)
        counted = {**figures, **dict(sorted(self.counts.items())), "slowest_order_s": round(self.slowest, 1)}
        return Report(counted, [*self.findings, *left, *findings], dict(sorted(series.items())))

    def _left(self) -> Sequence[str]:
        """Return what is left of deleted servers: there must be nothing."""
        try:
            operations = lists.operations(self._cloud.client("conductor", timeout=10.0), ListOperations())
        except errors.MoorageError as fault:
            return [f"the operations under way are unknown: {fault}"]
        verdict = judge(self._cloud.database, [])
        return [
            *(f"guest of {guest.instance_uuid} on {guest.host}" for guest in guests(self._cloud)),
            *(f"{one.kind} of {one.subject} at step {one.step}: {one.reason}" for one in operations),
            *([] if verdict.clean else [str(verdict)]),
        ]

    @abstractmethod
    def _work(self, client: Client, number: int) -> None:
        """Work as one of the clients until :attr:`_ended` is set."""

    def _client(self, number: int) -> None:
        self._guarded(lambda: self._work(self._cloud.client("conductor", timeout=CALL_SECONDS), number))

    def _guarded(self, job: Callable[[], None]) -> None:
        """Do a job; its failure is a finding."""
        try:
            job()
        except Stuck as fault:
            self.find(f"stuck: {fault}")
        except Exception as fault:  # noqa: BLE001 - it is reported at the end of the drill
            self.find(f"{type(fault).__name__}: {fault}")

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                overcommitted = judge(self._cloud.database, []).overcommitted
            except errors.Unavailable:
                continue  # the drill may be harming the database
            if overcommitted:
                self.find(f"{overcommitted} providers are over-committed")


class Workload(WorkingClients):
    """Clients that each build a server, perhaps move, rebuild or shelve it, and delete it, one after the other."""

    def __init__(self, cloud: RunningCloud | DrillCloud, clients: int, seed: int, *, moves: bool) -> None:
        super().__init__(cloud, clients)
        self._seed = seed
        self._moves = moves

    def _work(self, client: Client, number: int) -> None:
        seed, servers = ids.derived("drill", self._seed, number), 0
        chance = random.Random(seed)
        while not self._ended.is_set():
            servers += 1
            self._live(Server(self, client, ids.derived(seed, servers)), chance)

    def _live(self, server: Server, chance: random.Random) -> None:
        """Build a server, change it, and delete it."""
        instance = server.build()
        if instance.state == "active":
            hosts = [guest.host for guest in guests(self._cloud) if guest.instance_uuid == server.uuid]
            # A failed attempt may have left a guest elsewhere, which is being removed.
            if hosts.count(str(instance.host)) != 1:
                self.find(f"instance {server.uuid} is on host {instance.host} and has guests on {hosts}")
            if self._moves:
                chance.choice((server.migrate, server.resize, server.live_migrate, server.rebuild, server.shelve))()
        server.delete()
