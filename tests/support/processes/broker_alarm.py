"""The alarms of a private broker."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.servers import RabbitMQServer

#: For each alarm: the Erlang expression that raises it, the one that ends it, and the broker's name for it. All other
#: settings have their defaults.
ALARMS = {
    "memory": (
        "vm_memory_monitor:set_vm_memory_high_watermark(0.00001)",
        "vm_memory_monitor:set_vm_memory_high_watermark(0.4)",
        "low on memory",
    ),
    "disk": (
        "rabbit_disk_monitor:set_disk_free_limit(1000000000000000)",
        "rabbit_disk_monitor:set_disk_free_limit(10000000)",
        "low on disk",
    ),
}
#: The alarm is raised in one process of the broker and announced by a second one, and each connection's process reads
#: the announcement. The answers of the second and of all connections show that they have done so: until then, a call
#: passes whose answer is blocked.
_ANNOUNCED = "rabbit_alarm:get_alarms(), [catch rabbit_reader:info(C, [state]) || C <- rabbit_networking:connections()]"


@contextmanager
def alarm(rabbitmq: RabbitMQServer, kind: str) -> Iterator[None]:
    """Keep an alarm on until exit; on entry, all connections know about it."""
    begin, end, _ = ALARMS[kind]
    rabbitmq.evaluate(f"{begin}, {_ANNOUNCED}")
    try:
        yield
    finally:
        rabbitmq.evaluate(end)
