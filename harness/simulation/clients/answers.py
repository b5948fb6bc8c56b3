"""The answers to callers, as far as the judge compares the cloud with them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.simulation.machine.kernel import KERNEL
from moorage import errors
from moorage.model import Flavor, Resources, Selection

T = TypeVar("T")

#: Virtual seconds: how long a caller repeats a request that is not answered, and the pause between two tries.
_PATIENCE, _PAUSE = 240.0, 1.0
ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"


class Broken(Exception):
    """A promise is broken; the text names the promise and the evidence."""


@dataclass
class Order:
    """An order about a server, with its outcome: accepted, refused, or unknown because nobody answered."""

    kind: str
    outcome: str = field(default=UNKNOWN, kw_only=True)


@dataclass
class GroupOrder(Order):
    """An order to attach a resource group to a server, or to detach it."""

    suffix: str
    resources: Resources
    #: The operation that carries the order out, once the order is accepted.
    operation: str | None = None


@dataclass
class LicenceWrite(Order):
    """A write of a server's licences."""

    amount: int
    #: The server's generation after it, once the write is accepted.
    generation: int = 0


@contextmanager
def noted(order: Order) -> Iterator[None]:
    """Note the outcome of an order that the block sends."""
    try:
        yield
        order.outcome = ACCEPTED
    except errors.Unavailable:
        raise
    except errors.MoorageError:
        order.outcome = REFUSED
        raise


@dataclass
class Told:
    """The answers of a cloud to the orders about one server."""

    orders: list[Order] = field(default_factory=list)
    flavors: list[Flavor] = field(default_factory=list)
    group: str | None = None
    #: Each group has its own suffix; only a group that was attached before can be detached.
    attached: list[GroupOrder] = field(default_factory=list)
    licences: list[LicenceWrite] = field(default_factory=list)

    def was(self, kinds: Iterable[str], *outcomes: str) -> bool:
        """Return whether one of these orders had one of these outcomes."""
        return any(order.kind in kinds and order.outcome in outcomes for order in self.orders)

    def possible_licences(self, *, are_named: bool) -> set[int]:
        """Return the numbers of licences that an existing server may hold, given whether its record names lost ones."""
        accepted = [write for write in self.licences if write.outcome == ACCEPTED]
        last = max(accepted, key=lambda write: write.generation).amount if accepted else 0
        possible = {last, *(write.amount for write in self.licences if write.outcome == UNKNOWN)}
        # A server that is shelved releases all that it holds.
        return possible | ({0} if are_named or self.was(["shelve"], ACCEPTED, UNKNOWN) else set())


def until_answered(call: Callable[[], T]) -> T:
    """Repeat a call until it is answered, as clients do."""
    end = KERNEL.now + _PATIENCE
    while True:
        try:
            return call()
        except (errors.Unavailable, errors.RequestInProgress):
            if KERNEL.now > end:
                raise
            KERNEL.sleep(_PAUSE)


def essence(answer: Any) -> object:
    """Return the part that is equal in all answers to one request: a claim may be released in between."""
    if isinstance(answer, list) and answer and isinstance(answer[0], list):
        return [[(one.service_host, one.claim_id) for one in selections] for selections in answer]
    if hasattr(answer, "forced_down"):
        return answer.service_host
    return answer


def faults_of(selections: list[Selection]) -> list[str]:
    """Describe the errors in the hosts of an answer."""
    first, *alternates = selections
    faults = []
    if first.claim_id is None and not first.released:
        faults.append(f"promise 5: the first of {selections} is not claimed")
    if any(one.claim_id is not None for one in alternates):
        faults.append(f"promise 5: an alternate of {selections} is claimed")
    if len({one.cell_uuid for one in selections}) > 1:
        faults.append(f"promise 5: an alternate of {selections} is in another cell")
    if len({one.service_host for one in selections}) < len(selections):
        faults.append(f"promise 5: a host is twice in {selections}")
    return faults
