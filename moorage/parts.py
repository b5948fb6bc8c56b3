"""Long lists of the super conductor, asked for part by part: each answer fits into one message."""

from typing import TypeVar

from msgspec import structs

from moorage.bus import Client
from moorage.messages import MAX_INSTANCES, ListInstances, ListMigrations
from moorage.model import Instance, Migration
from moorage.wire import Message

E = TypeVar("E", Instance, Migration)


def instances(client: Client, message: ListInstances, at_once: int = MAX_INSTANCES) -> list[Instance]:
    """Return all instances of a list.

    The parts are of different moments: an instance that is there throughout is in exactly one of them.

    :param at_once: the most instances of one answer.
    :raises MoorageError: a part cannot be had.
    """
    found = _whole(client, message, at_once)
    return [instance for instance in found if message.deleted or instance.state != "deleted"]


def migrations(client: Client, message: ListMigrations, at_once: int = MAX_INSTANCES) -> list[Migration]:
    """Return all migrations of a list; see :func:`instances`."""
    over = ("confirmed", "reverted", "failed", "ended")
    return [one for one in _whole(client, message, at_once) if message.ended or one.state not in over]


def _whole(client: Client, message: Message[list[E]], at_once: int) -> list[E]:
    found: list[E] = []
    part = client.call(structs.replace(message, limit=at_once))
    while len(part) == at_once:
        found += part
        part = client.call(structs.replace(message, limit=at_once, after=part[-1].number))
    return found + part
