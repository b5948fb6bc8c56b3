"""Clients of a faulty cloud that build and delete all the time, while a test causes faults."""

import threading
import time
from dataclasses import dataclass, field

from support.processes.fault_servers import Server, delete
from support.processes.faulty_cloud import FaultyCloud

CLIENTS = 8
#: Seconds for an order that meets a dead server: it waits for the server, for the services that restart after it, and
#: for other clients.
PATIENCE = 120.0


@dataclass
class Load:
    """Clients that build an instance, check it, delete it, and begin again."""

    cloud: FaultyCloud
    ended: threading.Event = field(default_factory=threading.Event)
    #: For each build: when it was ordered, when it ended, and its final state.
    builds: list[tuple[float, float, str]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)
    #: The reasons of the builds that ended in error, without the uuids of their instances.
    reasons: set[str] = field(default_factory=set)

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self.ended.is_set() and not self.faults:
                server = Server(self.cloud, 1, zone="nova", patience=PATIENCE)
                began = time.monotonic()
                server.order_build()
                instance = server.built()
                self.builds.append((began, time.monotonic(), instance.state))
                if instance.state == "error":
                    self.reasons.add(str(instance.reason).replace(instance.uuid, "…"))
                if instance.state == "active":
                    hosts = [guest.host for guest in self.cloud.guests() if guest.instance_uuid == instance.uuid]
                    assert hosts.count(str(instance.host)) == 1, (hosts, instance)
                delete([server])
                gone = server.show()
                assert gone.state == "deleted", gone
        except BaseException as fault:  # noqa: BLE001 - raised by the test's own thread
            self.faults.append(fault)

    def wait_until_recovered(self, back: float) -> None:
        """Wait until all builds that were affected by the fault have ended: two for each client since ``back``.

        :raises AssertionError: they do not end.
        """
        # Recovery is the time until these builds have ended, so all of them must have ended first.
        while not self.faults and not sum(ended > back for _, ended, _ in self.builds) >= 2 * CLIENTS:
            assert time.monotonic() < back + PATIENCE, "nothing is built any more"
            time.sleep(0.1)

    def recovery(self, back: float) -> float:
        """Return the seconds from ``back`` until the last build that was ordered before ``back`` had ended.

        If every client was deleting at ``back``, return the seconds until the first build had ended.
        """
        after = [(began, ended) for began, ended, _ in self.builds if ended > back]
        return max(
            [ended - back for began, ended in after if began < back], default=min(ended - back for _, ended in after)
        )
