"""The topics of the buses, each as a class that its messages inherit; limits and base classes of several topics."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Generic

import msgspec
from msgspec import Meta

from moorage import errors
from moorage.messages.wire import Message, Mutation, R
from moorage.model import Count, Uuid, Value

#: The most instances of one request.
MAX_INSTANCES = 1000
#: The most entries of a part of a list: a few megabytes, while a broker accepts at most sixteen.
MAX_LISTED = 10_000

#: The most selections, claimed ones and alternates together, in one answer of the scheduler. A selection has 700 bytes
#: on the bus if the host has one provider, and 1,000 if it has allocations from three providers. This maximum is ten
#: megabytes, which is less than the 16 MiB of a stored answer.
MAX_SELECTIONS = 10_000

#: The most bytes of a request spec in an order, as JSON, and of the specs of all instances of an order together: each
#: instance is stored with its spec, and lists read them all. Arbitrary: a spec with 10,000 names of hosts to ignore has
#: a quarter of a megabyte.
MAX_SPEC = 512 * 2**10
MAX_SPECS = 64 * 2**20

#: The topic for the reports of hosts. It is separate from the topics of the scheduler and of cell conductors, with its
#: own threads, so that no host seems dead while a server waits for something. Those topics also serve reports, for
#: former releases.
REPORTS_TOPIC = "reports"

#: The most entries of a part of a list.
PartLimit = Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
#: The fields of :class:`ListInParts`, each with its version.
IN_PARTS: Mapping[str, str] = {"limit": "1.6", "after": "1.6"}

InstanceUuids = Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class ToPlacement:
    """Served by the placement role, on the main bus."""

    __slots__ = ()
    topic = "placement"


class ToScheduler:
    """Served by the schedulers, on the main bus."""

    __slots__ = ()
    topic = "scheduler"


class ToConductor:
    """Served by the super conductor, on the main bus."""

    __slots__ = ()
    topic = "conductor"


class ToCell:
    """Served by the conductors of a cell, on the cell's bus, where the topic is `conductor.<cell uuid>`."""

    __slots__ = ()
    topic = "conductor.cell"


class ToAgent:
    """Served by an agent, on the cell's bus, where the topic is `compute.<cell uuid>`."""

    __slots__ = ()
    topic = "compute"


class Done(Value, frozen=True):
    """The empty answer of a mutation."""


class ListInParts(Message[R], Generic[R], frozen=True, kw_only=True):
    """A list that may be longer than a message: see :mod:`moorage.cli.lists`.

    Each part begins ``after`` the greatest key of the part before it. A part that is shorter than its limit is the
    last one. A server of a former release answers with the whole list.
    """

    since: ClassVar = IN_PARTS
    guards: ClassVar = frozenset(IN_PARTS)
    #: Null asks for the whole list in one message.
    limit: PartLimit | None = None


class OrderAfter(Mutation[R], ToConductor, Generic[R], frozen=True, kw_only=True):
    """An order about an instance that names the instance's last order as read by the caller."""

    since: ClassVar = {"last_order": "1.6"}
    guards: ClassVar = frozenset({"last_order"})
    instance_uuid: Uuid
    #: ``Instance.last_order`` as read by the caller. Refused with ``StaleOrder`` if another order was given since.
    last_order: Count | None = None


class NumberedOrder(Mutation[R], ToCell, Generic[R], frozen=True, kw_only=True):
    """An order about an instance, numbered by its super conductor.

    The cell carries out orders in the order of their numbers. An order is refused with ``StaleOrder`` if its number is
    below that of the last one carried out, or not above that of a refused one. Messages of one order have one number.
    """

    since: ClassVar = {"order_number": "1.6"}
    guards: ClassVar = frozenset({"order_number"})
    instance_uuid: Uuid
    #: Null from a super conductor of a former release; it is then not compared.
    order_number: Count | None = None


def reports_topic(cell_uuid: str) -> str:
    """Return the topic of the reports of a cell's agents."""
    return f"{REPORTS_TOPIC}.{cell_uuid}"


def check_spec(spec: Value, path: str, instances: int = 1) -> None:
    """Check the size of a request spec, or of a part of one, that is stored with each instance of an order.

    :param path: the place of ``spec`` in the order.
    :raises InvalidRequest: it is too large.
    """
    most = min(MAX_SPEC, MAX_SPECS // instances)
    if (size := len(msgspec.json.encode(spec))) > most:
        reason = f"it has {size:,} bytes, and may have {most:,} for {instances} instance(s)"
        raise errors.InvalidRequest(path=path, reason=reason)
