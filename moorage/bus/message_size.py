"""The size of messages: what fits into one, and how much is sent in several."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from moorage import batches, errors
from moorage.messages.wire import Message, encode

T = TypeVar("T")

#: The most bytes of a message on the bus. RabbitMQ 4 takes messages of 16 MiB, and answers a larger one by closing the
#: channel: the caller gets no answer.
MAX_MESSAGE = 12 * 2**20
#: Content of at most so many bytes fits: the library encodes it twice, which makes at most 3.5 bytes of each.
SURELY_FITS = MAX_MESSAGE // 4


def check_request(message: Message[Any]) -> None:
    """Check that a request fits into one message.

    :raises RequestTooLarge: it does not.
    """
    try:
        surely_fits = len(msgspec.json.encode(message)) <= SURELY_FITS
    except UnicodeEncodeError:
        surely_fits = False  # a text outside UTF-8, which the server refuses by its place
    if not surely_fits and (size := _sent(encode(message))) > MAX_MESSAGE:
        raise errors.RequestTooLarge(method=message.method, size=size, limit=MAX_MESSAGE)


def fitting(message: Message[Any], answer: Any) -> Any:
    """Return the encoded answer to a request unchanged if it fits into one message.

    :raises ReplyTooLarge: it does not.
    """
    if len(msgspec.json.encode(answer)) > SURELY_FITS and (size := _sent(answer)) > MAX_MESSAGE:
        raise errors.ReplyTooLarge(method=message.method, size=size, limit=MAX_MESSAGE)
    return answer


def in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return values in parts that surely fit into one message each; one that may not is a part by itself."""
    return batches.in_parts(values, lambda value: len(msgspec.json.encode(value)), SURELY_FITS)


def _sent(content: Any) -> int:
    return len(json.dumps(json.dumps(content)))
