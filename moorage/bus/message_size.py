"""The size of messages: check that content fits into one message, or split it into several."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from moorage import batches, errors
from moorage.messages.wire import Message, encode

T = TypeVar("T")

#: The most bytes of a message on the bus. RabbitMQ 4 accepts messages up to 16 MiB. It closes the channel on a larger
#: one, so that the caller gets no answer.
MAX_MESSAGE = 12 * 2**20
#: Content of at most this many bytes fits. The library encodes it twice, so that each byte becomes at most 3.5 bytes.
SURELY_FITS = MAX_MESSAGE // 4


def check_request(message: Message[Any]) -> None:
    """Check that a request fits into one message.

    :raises RequestTooLarge: the request does not fit.
    """
    try:
        surely_fits = len(msgspec.json.encode(message)) <= SURELY_FITS
    except UnicodeEncodeError:
        surely_fits = False  # a text that is not valid UTF-8: the server refuses it and names its field
    if not surely_fits and (size := _sent(encode(message))) > MAX_MESSAGE:
        raise errors.RequestTooLarge(method=message.method, size=size, limit=MAX_MESSAGE)


def fitting(message: Message[Any], answer: Any) -> Any:
    """Return the encoded answer to a request unchanged if it fits into one message.

    :raises ReplyTooLarge: the answer does not fit.
    """
    if len(msgspec.json.encode(answer)) > SURELY_FITS and (size := _sent(answer)) > MAX_MESSAGE:
        raise errors.ReplyTooLarge(method=message.method, size=size, limit=MAX_MESSAGE)
    return answer


def in_parts(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split values into parts that certainly fit into one message each; a value that may not fit is its own part."""
    return batches.in_parts(values, lambda value: len(msgspec.json.encode(value)), SURELY_FITS)


def _sent(content: Any) -> int:
    return len(json.dumps(json.dumps(content)))
