"""The alarms of a private broker."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.servers import RabbitMQServer

#: For each alarm: the setting that raises it, the setting that ends it, and the broker's name for it. All other
#: settings have their defaults.
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.00001"), ("set_vm_memory_high_watermark", "0.4"), "low on memory"),
    "disk": (("set_disk_free_limit", "1000000000000000"), ("set_disk_free_limit", "10000000"), "low on disk"),
}


@contextmanager
def alarm(rabbitmq: RabbitMQServer, kind: str) -> Iterator[None]:
    """Keep an alarm on until exit."""
    begin, end, _ = ALARMS[kind]
    rabbitmq.rabbitmqctl(rabbitmq.nodename, list(begin))
    try:
        yield
    finally:
        rabbitmq.rabbitmqctl(rabbitmq.nodename, list(end))
