"""Clients of a faulty cloud that build and delete all the time, while something is done to the cloud."""

import threading
import time
from dataclasses import dataclass, field

from support.processes.fault_servers import Server, delete
from support.processes.faulty_cloud import FaultyCloud

CLIENTS = 8
#: An order that meets a dead server waits for it, for what starts again behind it, and for other clients.
PATIENCE = 120.0


@dataclass
class Load:
    """Clients that build an instance, see to it that it is as it should be, delete it, and begin again."""

    cloud: FaultyCloud
    ended: threading.Event = field(default_factory=threading.Event)
    #: Of each build: when it was ordered, when it ended, and how.
    builds: list[tuple[float, float, str]] = field(default_factory=list)
    faults: list[BaseException] = field(default_factory=list)

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
                if instance.state == "active":
                    hosts = [guest.host for guest in self.cloud.guests() if guest.instance_uuid == instance.uuid]
                    assert hosts.count(str(instance.host)) == 1, (hosts, instance)
                delete([server])
                gone = server.show()
                assert gone.state == "deleted", gone
        except BaseException as fault:  # noqa: BLE001 - told by the test's own thread
            self.faults.append(fault)

    def wait_until_recovered(self, back: float) -> None:
        """Wait until so many builds have ended since ``back`` that those which had met the fault are among them.

        :raises AssertionError: they do not end.
        """
        # Not before what has met the fault has ended: that is the time which is to be told.
        while not self.faults and not sum(ended > back for _, ended, _ in self.builds) >= 2 * CLIENTS:
            assert time.monotonic() < back + PATIENCE, "nothing is built any more"
            time.sleep(0.1)

    def recovery(self, back: float) -> float:
        """Return how long after ``back`` the last of the builds that were ordered before it had ended.

        Where every client was deleting just then, it is how long after it the first build has ended.
        """
        after = [(began, ended) for began, ended, _ in self.builds if ended > back]
        return max(
            [ended - back for began, ended in after if began < back],
            default=min(ended - back for _, ended in after),
        )
