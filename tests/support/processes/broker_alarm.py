"""The alarms of a private broker."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.servers import RabbitMQServer

#: Of each alarm, what raises it, what ends it, and what the broker calls it. Others than these settings are default.
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.00001"), ("set_vm_memory_high_watermark", "0.4"), "low on memory"),
    "disk": (("set_disk_free_limit", "1000000000000000"), ("set_disk_free_limit", "10000000"), "low on disk"),
}


@contextmanager
def alarm(rabbitmq: RabbitMQServer, kind: str) -> Iterator[None]:
    """Have an alarm on until exit."""
    begin, end, _ = ALARMS[kind]
    rabbitmq.rabbitmqctl(rabbitmq.nodename, list(begin))
    try:
        yield
    finally:
        rabbitmq.rabbitmqctl(rabbitmq.nodename, list(end))
