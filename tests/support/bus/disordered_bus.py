"""A bus that delivers calls twice, late, after later ones, or not at all, as a seed decides."""

import json
import queue
import random
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from moorage.bus import inproc

#: What befalls a call, and how often of a thousand calls. The sender of any but a doubled one gets no answer.
_MISHAPS = {
    "doubled": 100,
    # Its repeats go through.
    "held back": 50,
    # Its repeats are lost until then.
    "withheld": 30,
    "lost": 30,
    # Carried out at once, and its answer is lost.
    "unanswered": 30,
}
#: The share of methods that something befalls nearly always.
_STRUCK = 0.1
#: Late is after so many other calls at most. A cloud at rest sends some fifty a second.
_LATEST = 250


@dataclass
class Disorder:
    """Decides what befalls each call; to be observed by :func:`moorage.bus.inproc.observed`.

    What befalls the n-th call of a method depends on the seed alone, and not on the order in which threads send.
    """

    #: How often each mishap has befallen each method.
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seed: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _calls: int = 0
    _calls_of: Counter[str] = field(default_factory=Counter)
    _held: list[tuple[int, inproc.Delivery]] = field(default_factory=list)
    #: Until which call all copies of a message are lost.
    _withheld: dict[str, int] = field(default_factory=dict)
    _late: list[Future[str | None]] = field(default_factory=list)
    _carrier: ThreadPoolExecutor | None = None

    def begin(self, seed: int) -> None:
        with self._lock:
            self._calls, self._seed, self._carrier = 0, seed, ThreadPoolExecutor(8, "late")
            self._calls_of.clear()
            self._withheld.clear()

    def calm(self) -> None:
        """Let no more befall any call; what is held back is so still."""
        with self._lock:
            self._seed = None

    def end(self) -> list[str]:
        """Deliver what is still held back; return which late messages were answered by a fault of ours, or not."""
        with self._lock:
            for _due, delivery in self._held:
                self._deliver(delivery)
            self._held.clear()
            late, self._late = self._late, []
            carrier, self._carrier = self._carrier, None
        assert carrier is not None
        carrier.shutdown()
        return [fault for one in late if (fault := one.result()) is not None]

    def __call__(self, delivery: inproc.Delivery) -> bool:
        with self._lock:
            if self._seed is None:
                return False
            self._calls += 1
            for due, late in self._held:
                if due <= self._calls:
                    self._deliver(late)
            self._held = [one for one in self._held if one[0] > self._calls]
            return self._befalls(delivery, self._seed)

    def _befalls(self, delivery: inproc.Delivery, seed: int) -> bool:
        """Have something befall a call, or nothing; return whether its sender gets no answer."""
        key = json.dumps([delivery.topic, delivery.method, delivery.arguments], sort_keys=True)
        if self._withheld.get(key, 0) > self._calls:
            return True
        self._calls_of[delivery.method] += 1
        dice = random.Random(f"{seed}/{delivery.method}/{self._calls_of[delivery.method]}")
        # In each story it is chiefly others: so every method has its own in which it hardly ever arrives in order.
        is_struck = random.Random(f"{seed}/{delivery.method}").random() < _STRUCK
        rates = [*_MISHAPS.values(), 150 if is_struck else 1000 - sum(_MISHAPS.values())]
        [mishap] = dice.choices([*_MISHAPS, "none"], rates)
        if mishap == "none":
            return False
        self.done[delivery.method, mishap] += 1
        # Most come soon afterwards; some when all is over.
        due = self._calls + int(_LATEST ** dice.uniform(0.0, 1.2))
        if mishap == "unanswered":
            self._deliver(delivery)
        elif mishap != "lost":
            self._held.append((due, delivery))
        if mishap == "withheld":
            self._withheld[key] = due
        return mishap != "doubled"

    def _deliver(self, delivery: inproc.Delivery) -> None:
        assert self._carrier is not None
        self._late.append(self._carrier.submit(_fault_of, delivery))


def _fault_of(delivery: inproc.Delivery) -> str | None:
    """Deliver a message; return in words that it is answered by a fault of ours, or by nothing."""
    try:
        answer = delivery.deliver(60.0)
    except queue.Empty:
        return f"{delivery.topic} {delivery.method} {delivery.arguments} is not answered"
    failure = answer["failure"]
    return f"{delivery.topic} {delivery.method}: {failure}" if failure and '"InternalError"' in failure else None
