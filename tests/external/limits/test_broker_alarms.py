"""Alarms of the broker: callers get errors in time, services report the alarm, and work continues when it ends."""

import os
import time
from collections.abc import Callable

import pytest
from support.processes.broker_alarm import ALARMS, alarm
from support.processes.fault_servers import check
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import Load
from support.processes.stopwatch import Stopwatch

from harness.servers import RabbitMQServer
from moorage import errors
from moorage.messages import ListInstances

pytestmark = pytest.mark.timeout(600)

#: Seconds for which an alarm is on. The long form exceeds all time-outs, including those of heartbeats.
ON = 60.0 if os.environ.get("DRILLS") == "long" else 5.0
PATIENCE = 2.0


def logged(cloud: FaultyCloud, text: str) -> int:
    return sum(cloud.log(role).count(text) for role in cloud.ROLES)


@pytest.mark.parametrize("kind", ALARMS)
def test_while_an_alarm_is_on_callers_get_errors_in_time_and_work_continues_when_it_ends(
    cloud: FaultyCloud, rabbitmq: RabbitMQServer, kind: str, record_property: Callable[[str, object], None]
) -> None:
    named, over = f"an alarm of the broker is on ({ALARMS[kind][2]})", "alarm is over"
    warned, ended = logged(cloud, named), logged(cloud, over)
    client = cloud.client("conductor", timeout=PATIENCE)
    with Load(cloud) as load:
        load.ended.wait(1.0)
        with alarm(rabbitmq, kind):
            until = time.monotonic() + ON
            while time.monotonic() < until:
                watch = Stopwatch()
                with pytest.raises(errors.Unavailable):
                    client.call(ListInstances())
                assert watch.seconds < PATIENCE + 1.0
            status = cloud.run("status", "--timeout", "1", "-f", "value", check=False)
        back = time.monotonic()
        assert any(line.startswith("bus wrong") and named in line for line in status.stdout.splitlines()), status
        load.wait_until_recovered(back)
    assert not load.faults, load.faults
    check(cloud, [], 60.0)
    # A process logs the alarm at most once a minute, no matter how many messages fail, and it logs the end.
    assert 1 <= logged(cloud, named) - warned <= len(cloud.ROLES) * (1 + ON // 60)
    assert logged(cloud, over) > ended
    record_property("measured", f"alarm of the broker ({kind}) for {ON:g} s: recovery in {load.recovery(back):.1f} s")
