"""More requests than a scheduler can serve within their time-outs: it works for the callers who still wait."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url
from support.scheduler.builders import select

from harness.arguments import Servers
from harness.bench.cloud import BenchCloud, running
from harness.cloud import CloudSpec
from harness.tcp_proxy import TcpProxy
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options

pytestmark = pytest.mark.timeout(300)

#: Seconds that each answer of the database is late. A batch of decisions waits for five of them.
LATE = 0.05
CALLERS, SECONDS = 128, 5.0
#: The most decisions of a batch, and the time-out of a hurried caller in durations of a batch. A request may use half
#: of its time-out in the queue; the rest is enough for a request that has waited for one batch, and not for two.
TOGETHER, BATCHES = 32, 5.6
#: The rate of patient callers gives the time-out of hurried ones, so both are measured again if the machine's speed
#: changed meanwhile.
ROUNDS = 4


@pytest.fixture
def slow(mariadb_url: str, fresh_vhosts: Iterator[str]) -> Iterator[BenchCloud]:
    """A cloud whose database answers late."""
    url = make_url(mariadb_url)
    with TcpProxy(url.host or "", url.port or 0) as proxy:
        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        hosts: dict[str, dict[str, object]] = {
            "fake_driver": {"vcpus": 10_000, "memory_mb": 10_000_000, "disk_gb": 100_000}
        }
        with running(Servers(next(fresh_vhosts), through), CloudSpec(hosts=20, settings=hosts)) as cloud:
            proxy.slow_down(LATE)
            yield cloud
            proxy.slow_down(0.0)


def claimed(cloud: BenchCloud, timeout: float) -> list[str]:
    """Return the instances claimed for callers who ask again as soon as they have an answer or an error."""
    end = time.monotonic() + SECONDS
    instances: list[str] = []

    def ask(bus: Bus) -> None:
        client = bus.client("scheduler", timeout=timeout)
        while time.monotonic() < end:
            message = select(ids.fresh(), num_alternates=2)
            try:
                client.call(message)
            except errors.Unavailable:
                continue
            instances.extend(message.instance_uuids)

    with closing(Bus(options.new({"DEFAULT": {"transport_url": cloud.transport_url}}))) as bus:
        threads = [threading.Thread(target=ask, args=(bus,)) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return instances


def test_requests_whose_callers_will_not_wait_long_enough_do_not_delay_the_others(
    slow: BenchCloud, record_property: Callable[[str, object], None]
) -> None:
    # If each request were carried out in its turn, whether or not its caller still waited, it would be a third or half
    # in every round. A machine that becomes three times slower between the two measurements of a round spoils one.
    measured: list[tuple[int, int]] = []
    while len(measured) < ROUNDS and not any(hurried > 0.65 * patient for patient, hurried in measured):
        patient = len(claimed(slow, 60.0))
        measured.append((patient, len(claimed(slow, BATCHES * SECONDS / (patient / TOGETHER)))))
    record_property("measured", f"answers to patient and to hurried callers: {measured}")
    assert any(hurried > 0.65 * patient for patient, hurried in measured), measured
