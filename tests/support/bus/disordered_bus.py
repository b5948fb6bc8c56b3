"""A bus that delivers calls twice, late, after later ones, or not at all, as determined by a seed."""

import json
import queue
import random
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from support.bus.deliveries import Delivery

#: The mishaps of calls, and their frequency in a thousand calls. Except for a doubled call, the sender gets no answer.
_MISHAPS = {
    "doubled": 100,
    # Repeats of the call are delivered.
    "held back": 50,
    # Repeats of the call are lost until it is delivered.
    "withheld": 30,
    "lost": 30,
    # The call is carried out at once, but its answer is lost.
    "unanswered": 30,
}
#: The share of methods for which nearly each call has a mishap.
_STRUCK = 0.1
#: A late call arrives after at most this number of other calls. An idle cloud sends about fifty a second.
_LATEST = 250


@dataclass
class Disorder:
    """Decides on the mishap of each call; an observer for :func:`support.bus.deliveries.observed`.

    The mishap of the n-th call of a method depends only on the seed, and not on the order in which threads send.
    """

    #: The number of mishaps by method and kind.
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seed: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: int = 0
    _calls_of: Counter[str] = field(default_factory=Counter)
    _held: list[tuple[int, Delivery]] = field(default_factory=list)
    #: The number of the call until which all copies of a message are lost.
    _withheld: dict[str, int] = field(default_factory=dict)
    _late: list[Future[str | None]] = field(default_factory=list)
    _carrier: ThreadPoolExecutor | None = None

    def begin(self, seed: int) -> None:
        with self._lock:
            self._calls, self._seed, self._carrier = 0, seed, ThreadPoolExecutor(8, "late")
            self._calls_of.clear()
            self._withheld.clear()

    def calm(self) -> None:
        """End all mishaps; calls that are held back stay so."""
        with self._lock:
            self._seed = None

    def end(self) -> list[str]:
        """Deliver all calls that are still held back; return the late calls that got an internal error or no answer."""
        with self._lock:
            for _due, delivery in self._held:
                self._deliver(delivery)
            self._held.clear()
            late, self._late = self._late, []
            carrier, self._carrier = self._carrier, None
        assert carrier is not None
        carrier.shutdown()
        return [fault for one in late if (fault := one.result()) is not None]

    def __call__(self, delivery: Delivery) -> bool:
        with self._lock:
            if self._seed is None:
                return False
            self._calls += 1
            for due, late in self._held:
                if due <= self._calls:
                    self._deliver(late)
            self._held = [one for one in self._held if one[0] > self._calls]
            return self._befalls(delivery, self._seed)

    def _befalls(self, delivery: Delivery, seed: int) -> bool:
        """Choose a mishap for a call, or none; return whether the sender gets no answer."""
        key = json.dumps([delivery.topic, delivery.method, delivery.arguments], sort_keys=True)
        if self._withheld.get(key, 0) > self._calls:
            return True
        self._calls_of[delivery.method] += 1
        dice = random.Random(f"{seed}/{delivery.method}/{self._calls_of[delivery.method]}")
        # In each run other methods are affected: so each method has runs in which its calls hardly ever arrive in
        # order.
        is_struck = random.Random(f"{seed}/{delivery.method}").random() < _STRUCK
        rates = [*_MISHAPS.values(), 150 if is_struck else 1000 - sum(_MISHAPS.values())]
        [mishap] = dice.choices([*_MISHAPS, "none"], rates)
        if mishap == "none":
            return False
        self.done[delivery.method, mishap] += 1
        # Most arrive soon; some only at the end.
        due = self._calls + int(_LATEST ** dice.uniform(0.0, 1.2))
        if mishap == "unanswered":
            self._deliver(delivery)
        elif mishap != "lost":
            self._held.append((due, delivery))
        if mishap == "withheld":
            self._withheld[key] = due
        return mishap != "doubled"

    def _deliver(self, delivery: Delivery) -> None:
        assert self._carrier is not None
        self._late.append(self._carrier.submit(_fault_of, delivery))


def _fault_of(delivery: Delivery) -> str | None:
    """Deliver a message; return a text if the answer is an internal error, or if there is none."""
    try:
        answer = delivery.deliver(60.0)
    except queue.Empty:
        return f"{delivery.topic} {delivery.method} {delivery.arguments} is not answered"
    failure = answer["failure"]
    return f"{delivery.topic} {delivery.method}: {failure}" if failure and '"InternalError"' in failure else None
