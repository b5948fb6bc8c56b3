"""What the messages of several topics have in common."""

from typing import Annotated

from msgspec import Meta

from moorage.model import Uuid, Value

#: The most instances that one request may name.
MAX_INSTANCES = 1000

InstanceUuids = Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class Done(Value, frozen=True):
    """The answer of a mutation that has nothing to tell."""
