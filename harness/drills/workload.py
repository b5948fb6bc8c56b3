"""The work of a cloud during a drill: clients that build servers, change some of them, and delete them."""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from harness.audit import judge
from harness.cloud import RunningCloud
from harness.drills.cloud import DrillCloud, guests
from harness.drills.orders import Server, Stuck, WorkRecord
from moorage import errors, ids
from moorage.bus.bus import Client

#: Seconds for a call. If its answer is lost, the call is repeated with the same request id.
CALL_SECONDS = 10.0
#: Seconds between two checks of the amounts of all hosts.
_LOOK_SECONDS = 1.0


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
