"""Read rows into values, and encode the columns that hold text or a document as bytes."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Row

from moorage import errors
from moorage.messages import MAX_LISTED
from moorage.messages.basis import ListInParts
from moorage.model import Flavor

K = TypeVar("K")
T = TypeVar("T")
M = TypeVar("M", bound=ListInParts[Any])

#: The most rows in one statement. Arbitrary: below every limit of the databases.
BATCH = 1000
#: The most rows with request specs that are read at once: they may have 50 MB. Arbitrary.
SPECS_AT_ONCE = 100


class ShownSpec(msgspec.Struct):
    """The part of a stored request spec that lists of instances show; to skip the rest is fast."""

    project_id: str
    user_id: str
    flavor: Flavor


def of_row(kind: Callable[..., T], row: Row[Any], **given: Any) -> T:
    """Return a value of this kind; each field is ``given``, or the column of its name if the row has one."""
    fields = _fields(kind)
    return kind(**{name: value for name, value in row._asdict().items() if name in fields} | given)


@cache
def _fields(kind: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(kind).parameters)


def batches(whole: Sequence[T], size: int = BATCH) -> Iterator[Sequence[T]]:
    """Yield a sequence in batches of at most ``size``."""
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def whole_list(message: M, read: Callable[[M], list[T]]) -> list[T]:
    """Return a list that is requested without a limit; read only one entry more than one message may have.

    :raises ReplyTooLarge: there are more entries.
    """
    found = read(msgspec.structs.replace(message, limit=MAX_LISTED + 1))
    if len(found) > MAX_LISTED:
        raise errors.ReplyTooLarge(method=message.method, size=len(found), limit=MAX_LISTED)
    return found


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key, with keys and values in their original order."""
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def text(value: bytes | None) -> str | None:
    """Return the text of a column that is stored as bytes."""
    return None if value is None else value.decode()


def document(value: bytes | None, kind: type[T]) -> T | None:
    """Return the decoded value of a column that holds a document."""
    return None if value is None else msgspec.json.decode(value, type=kind)


def encoded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of columns as they are stored: a reason as bytes, an explanation as a document."""
    found = dict(values)
    if isinstance(reason := values.get("reason"), str):
        found["reason"] = reason.encode()
    if (explanation := values.get("explanation")) is not None:
        found["explanation"] = msgspec.json.encode(explanation)
    return found
