"""The calls over an in-process bus: observe them, lose them, and deliver them a second time, or later."""

import copy
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from oslo_config import cfg

from moorage.bus import inproc, message_json
from moorage.bus.calling import SECONDS_LEFT

import oslo_messaging


@dataclass(frozen=True)
class Delivery:
    """A call for a queue."""

    topic: str
    method: str
    arguments: dict[str, Any]
    _broker: inproc.Broker
    _key: inproc.Key
    _envelope: inproc.Envelope

    def deliver(self, timeout: float, seconds_left: float | None = None) -> dict[str, Any]:
        """Put a copy into the queue, and return its answer.

        :param seconds_left: the remaining seconds of its caller. Without them, only the guards of the message protect
            against a late arrival.
        :raises queue.Empty: no answer in time.
        """
        box: inproc.Box = queue.SimpleQueue()
        ctxt = {name: value for name, value in self._envelope.ctxt.items() if name != SECONDS_LEFT}
        if seconds_left is not None:
            ctxt[SECONDS_LEFT] = seconds_left
        again = inproc.Envelope(ctxt, copy.deepcopy(self._envelope.message), box, None)
        inproc.Broker.publish(self._broker, self._key, again)
        answer: dict[str, Any] = message_json.loads(box.get(timeout=timeout))
        return answer


#: Called with each call before its delivery; if it returns True, the call is lost, as in a broker that crashes.
Observer = Callable[[Delivery], bool]
_OBSERVERS: "WeakKeyDictionary[inproc.Broker, list[Observer]]" = WeakKeyDictionary()


@contextmanager
def observed(conf: cfg.ConfigOpts, url: str, observer: Observer) -> Iterator[None]:
    """Pass each call over this in-process bus to ``observer``, until exit."""
    home = inproc.broker_of(oslo_messaging.TransportURL.parse(conf, url))
    observers = _OBSERVERS.setdefault(home, [])
    observers.append(observer)
    cast(Any, home).publish = partial(_publish, home)
    try:
        yield
    finally:
        observers.remove(observer)
        if not observers:
            del cast(Any, home).publish


def _publish(home: inproc.Broker, key: inproc.Key, envelope: inproc.Envelope) -> None:
    """Publish a message, unless an observer drops it.

    :raises MessagingTimeout: the call is lost.
    """
    message = envelope.message
    if envelope.box is not None and message.get("namespace") is None:
        delivery = Delivery(key[1], message["method"], message["args"], home, key, envelope)
        lost = [observer(delivery) for observer in list(_OBSERVERS[home])]
        if any(lost):
            raise oslo_messaging.MessagingTimeout(f"No reply on topic {key[1]}")
    inproc.Broker.publish(home, key, envelope)
