"""What the messages of several topics have in common."""

from typing import Annotated

from msgspec import Meta

from moorage.model import Uuid, Value

#: The most instances that one request may name.
MAX_INSTANCES = 1000
#: The most entries of a part of a list: so that it is a few megabytes, of which a broker takes sixteen and fewer.
MAX_LISTED = 10_000

#: The most hosts, claimed ones and alternates together, that one answer of the scheduler names. On the bus one takes
#: 700 bytes where the host is flat and 1,000 where three of its providers serve: so many are ten megabytes, below the
#: 16 MiB of a stored answer.
MAX_SELECTIONS = 10_000

InstanceUuids = Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class Done(Value, frozen=True):
    """The answer of a mutation that has nothing to tell."""
