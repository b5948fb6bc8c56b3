"""The alarms of a broker: during an alarm the broker takes no messages, and notifies each connection that sends one.

RabbitMQ has an alarm for its memory and one for its disk space. If a connection sends a message during an alarm,
RabbitMQ reads nothing more from it. It reads the message when the alarm ends, even if the connection has been closed.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from amqp import spec

LOG = logging.getLogger(__name__)

#: Seconds between two log lines about one alarm, which every sent message reports again. Arbitrary.
_LOG_SECONDS = 60.0
_REASON = spec.method(spec.Connection.Blocked, "s")


def listen(connection: Any, blocked: Callable[[str], None]) -> None:
    """Have ``blocked`` called with the broker's reason when the broker blocks this py-amqp connection.

    The library itself ignores the reason and refers to the broker's log.
    """
    connection._METHODS = {**connection._METHODS, _REASON.method_sig: _REASON}  # noqa: SLF001
    connection._callbacks[_REASON.method_sig] = blocked  # noqa: SLF001


def reason_of(kind: str) -> str:
    """Return the text for a broker that blocks its connections for a reason such as ``low on memory``."""
    return (
        f"an alarm of the broker is on ({kind}), and it takes no messages; see `rabbitmq-diagnostics alarms`, and free "
        "memory or disk space there, or raise the limit"
    )


class AlarmLog:
    """Log the beginning and the end of a broker's alarms, each once for all connections of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: The time of the last log line about an alarm, by broker.
        self._logged_at: dict[str, float] = {}

    def began(self, broker: str, kind: str) -> None:
        """Log that an alarm is on, unless that was logged a short time ago."""
        with self._lock:
            if self._clock() - self._logged_at.get(broker, float("-inf")) < _LOG_SECONDS:
                return
            self._logged_at[broker] = self._clock()
        LOG.warning("%s: %s. Messages wait, and are sent when the alarm ends", broker, reason_of(kind))

    def ended(self, broker: str) -> None:
        """Log that an alarm is over, if its beginning was logged."""
        with self._lock:
            if self._logged_at.pop(broker, None) is None:
                return
        LOG.warning("%s: the broker's alarm is over", broker)


#: The alarm log of this process.
LOGGED = AlarmLog()
