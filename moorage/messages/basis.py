"""What the messages of several topics have in common."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Generic

from msgspec import Meta

from moorage.messages.wire import Message, Mutation, R
from moorage.model import Count, Uuid, Value

#: The most instances that one request may name.
MAX_INSTANCES = 1000
#: The most entries of a part of a list: so that it is a few megabytes, of which a broker takes sixteen and fewer.
MAX_LISTED = 10_000

#: The most hosts, claimed ones and alternates together, that one answer of the scheduler names. On the bus one takes
#: 700 bytes where the host is flat and 1,000 where three of its providers serve: so many are ten megabytes, below the
#: 16 MiB of a stored answer.
MAX_SELECTIONS = 10_000

#: Where hosts' reports are served: beside the topics of the scheduler and of cell conductors, in threads of their own.
#: Whatever those wait for makes no host look dead. Former releases report to those topics, which serve reports too.
REPORTS_TOPIC = "reports"

#: How many entries a part of a list has at most.
PartLimit = Annotated[int, Meta(ge=1, le=MAX_INSTANCES)]
#: The fields of :class:`ListInParts`, each with the version that brought it.
IN_PARTS: Mapping[str, str] = {"limit": "1.6", "after": "1.6"}

InstanceUuids = Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class Done(Value, frozen=True):
    """The answer of a mutation that has nothing to tell."""


class ListInParts(Message[R], Generic[R], frozen=True, kw_only=True):
    """A list that may be longer than a message: see :mod:`moorage.cli.lists`.

    Each part comes ``after`` the greatest key of the one before it. A part that is shorter than its limit is the last
    one. A server of a former release answers with the whole list.
    """

    since: ClassVar = IN_PARTS
    guards: ClassVar = frozenset(IN_PARTS)
    #: Null asks for the whole list in one message.
    limit: PartLimit | None = None


class OrderAfter(Mutation[R], Generic[R], frozen=True, kw_only=True):
    """An order about an instance that names the last order which its caller knows of."""

    since: ClassVar = {"last_order": "1.6"}
    guards: ClassVar = frozenset({"last_order"})
    instance_uuid: Uuid
    #: ``Instance.last_order`` as the caller has read it. Refused with ``StaleOrder`` where another was given since.
    last_order: Count | None = None


class NumberedOrder(Mutation[R], Generic[R], frozen=True, kw_only=True):
    """An order about an instance that its super conductor has numbered.

    The cell carries out orders in the order of their numbers. One whose number is below that of the last order which
    was carried out, or not above that of one which was refused, is refused with ``StaleOrder``. Messages of one order
    have one number.
    """

    since: ClassVar = {"order_number": "1.6"}
    guards: ClassVar = frozenset({"order_number"})
    instance_uuid: Uuid
    #: Null from a super conductor of a former release: nothing is compared then.
    order_number: Count | None = None


def reports_topic(cell_uuid: str) -> str:
    """Return the topic of the reports of a cell's agents."""
    return f"{REPORTS_TOPIC}.{cell_uuid}"
