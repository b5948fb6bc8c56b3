"""Base classes and encoding of messages: typed and versioned; requests are decoded strictly, answers leniently."""

import hashlib
import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

import msgspec

from moorage import errors
from moorage.model import RequestId, Value
from moorage.model.basis import PATTERNS

R = TypeVar("R")
T = TypeVar("T")

#: The version under development, of all topics: each new method and each new field of a message has it. It is raised
#: after a release. It is not the version of the package.
NEXT_VERSION = "1.9"

#: The most levels of nested values in a request, because recursive functions read the stored values. Arbitrary: twenty
#: levels are used.
_MOST_LEVELS = 100
_TOO_DEEP = f"its values are nested more than {_MOST_LEVELS} levels deep"
_NOT_UTF8 = "a text that is not written in UTF-8"


class Message(Value, Generic[R], frozen=True, kw_only=True):
    """A call of one method; the type argument is the type of its answer."""

    topic: ClassVar[str]
    #: By default the name of the class in snake case.
    method: ClassVar[str]
    #: The version of the topic's interface that introduced this method.
    version: ClassVar[str] = "1.0"
    #: Fields that were added later, each with its version. A field of a nested value has both names, with a dot between
    #: them. If it was added in version 1.6 or later, it is in the ``since`` of the nested value instead.
    since: ClassVar[Mapping[str, str]] = {}
    #: Optional fields, None by default, that are left out for a server of a former release. Most of them name the state
    #: that the caller relies on. They are not part of the digest.
    guards: ClassVar[frozenset[str]] = frozenset()
    #: True if several calls of one process may travel in one message of the broker. Only for calls that take
    #: milliseconds.
    may_be_batched: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if "method" not in vars(cls):
            cls.method = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def reply_type(cls) -> Any:
        """Return the type of the answer."""
        for base in getattr(cls, "__orig_bases__", ()):
            if arguments := get_args(base):
                return arguments[0]
        raise TypeError(f"{cls.__name__} does not say what it is answered with")

    def lowest_version(self) -> str:
        """Return the lowest version that has all fields that are set in this message."""
        encoded = encode(self)
        versions = [self.version, *(version for name, version in self.since.items() if _has_field(encoded, name))]
        if _later_fields(type(self)):
            versions += _versions_within(self, encoded)
        return max(versions, key=_parts)

    @classmethod
    def newest_version(cls) -> str:
        """Return the version that has all fields of this type of message."""
        return max([cls.version, *cls.since.values(), *_later_fields(cls)], key=_parts)

    def unguarded(self) -> Self:
        """Return the message without its guards, for a server of a former release."""
        return msgspec.structs.replace(self, **dict.fromkeys(self.guards))


class Mutation(Message[R], Generic[R], frozen=True, kw_only=True):
    """A message that changes something, idempotent by its request id."""

    request_id: RequestId

    def digest(self) -> bytes:
        """Return the SHA-256 digest (32 bytes) of all content except the request id and the guards."""
        content = encode(self.unguarded() if self.guards else self)
        del content["request_id"]
        return hashlib.sha256(msgspec.json.encode([self.topic, self.method, content], order="sorted")).digest()


def _has_field(content: Any, path: str) -> bool:
    """Return whether an encoded message has a field, or a field of a nested value, by its dotted path."""
    for name in path.split("."):
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True


@cache
def _later_fields(kind: type[Value]) -> frozenset[str]:
    """Return the versions that added fields to the nested values of a type."""
    reached: set[Any] = set()
    pending: list[Any] = [field.type for field in msgspec.structs.fields(kind)]
    while pending:
        found = pending.pop()
        pending += get_args(found)
        if isinstance(found, type) and issubclass(found, Value) and found not in reached:
            reached.add(found)
            pending += [field.type for field in msgspec.structs.fields(found)]
    return frozenset(version for nested in reached for version in nested.since.values())


def _versions_within(value: object, data: object) -> Iterator[str]:
    """Yield the version of each later field in the nested values of a message; ``data`` is its encoded form."""
    if isinstance(value, Value) and isinstance(data, dict):
        for name, part in data.items():
            if name in value.since and not isinstance(value, Message):
                yield value.since[name]
            yield from _versions_within(getattr(value, name), part)
    elif isinstance(value, dict) and isinstance(data, dict):
        for name, part in data.items():
            yield from _versions_within(value[name], part)
    elif isinstance(value, list | tuple) and isinstance(data, list | tuple):
        for part, encoded in zip(value, data, strict=True):
            yield from _versions_within(part, encoded)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


_PREPARING = threading.Lock()
_PREPARED: set[type[msgspec.Struct]] = set()


def prepare() -> None:
    """Make msgspec prepare all existing types of structures, before several threads decode one for the first time.

    msgspec analyses a class when it first decodes it. If two threads do so at the same time, the process crashes (a
    segmentation fault in msgspec 0.22). So this is called when a bus or a database is opened, before its service starts
    threads. Without it, a service that was restarted under load crashed in about one of a hundred starts, just after it
    was ready, with nothing in its log.
    """
    with _PREPARING:
        for kind in _known_structures() - _PREPARED:
            # If a type cannot be prepared, decoding it raises the error.
            with suppress(TypeError, NameError):
                msgspec.json.Decoder(kind)
            _PREPARED.add(kind)


def _known_structures() -> set[type[msgspec.Struct]]:
    found: set[type[msgspec.Struct]] = {msgspec.Struct}
    left = [msgspec.Struct]
    while left:
        children = [child for child in left.pop().__subclasses__() if child not in found]
        found.update(children)
        left += children
    return found


def encode(value: object) -> Any:
    """Return ``value`` as JSON-safe builtins, without fields that have their default values."""
    return msgspec.to_builtins(value)


def decode(kind: type[T], data: object) -> T:
    """Decode a reply or stored value; fields unknown to this version are ignored.

    :raises InvalidRequest: the data does not match the type; the error has the path of the wrong value.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as fault:
        # If the whole value is wrong, msgspec gives no path; if a key is wrong, it gives "`key` in" before the path.
        reason, _, path = str(fault).partition(" - at ")
        path = path.strip("`").rpartition("`")[2]
        raise errors.InvalidRequest(path=path or "$", reason=_in_words(reason)[:300]) from fault
    except RecursionError:
        raise errors.InvalidRequest(path="$", reason=_TOO_DEEP) from None
    except UnicodeEncodeError:  # the name of a field
        raise errors.InvalidRequest(path="$", reason=_NOT_UTF8) from None


def _in_words(reason: str) -> str:
    """Return the reason of a refusal; replace each pattern in it by a description."""
    for pattern, words in PATTERNS.items():
        reason = reason.replace(f"`str` matching regex {pattern!r}", words)
    return reason


def decode_strictly(kind: type[T], data: object) -> T:
    """Decode a request as :func:`decode` does, and refuse unknown fields, invalid UTF-8 and excessive nesting.

    :raises InvalidRequest: the data does not match the type; the error has the path of the wrong value.
    """
    value = decode(kind, data)
    _check_parts(value, data, "$", _MOST_LEVELS)
    return value


def _check_parts(value: object, data: object, path: str, levels: int) -> None:
    """Compare a decoded value with its data, and check everything in it."""
    if not levels:
        raise errors.InvalidRequest(path=path, reason=_TOO_DEEP)
    if isinstance(value, str):
        _refuse_text_outside_utf8(value, path)
    elif isinstance(value, msgspec.Struct) and isinstance(data, dict):
        _check_fields(value, data, path, levels)
    elif isinstance(value, dict) and isinstance(data, dict):
        for name, part in value.items():
            _refuse_text_outside_utf8(name, path)
            # Shorten names that are longer than any valid one: the paths of all levels are in memory at once.
            _check_parts(part, data[name], f"{path}[{name!r:.300}]", levels - 1)
    elif isinstance(value, list | tuple) and isinstance(data, list | tuple):
        for position, part in enumerate(value):
            _check_parts(part, data[position], f"{path}[{position}]", levels - 1)


def _check_fields(value: msgspec.Struct, data: Mapping[str, object], path: str, levels: int) -> None:
    for name in data:
        if name not in value.__struct_fields__:
            raise errors.InvalidRequest(path=path, reason=f"unknown field {str(name)[:100]!r}")
        part = getattr(value, name)
        # Databases do not accept such a number. In attributes, which have any type, it becomes null when encoded.
        if isinstance(part, float) and not math.isfinite(part):
            raise errors.InvalidRequest(path=f"{path}.{name}", reason="a number that JSON does not have")
        _check_parts(part, data[name], f"{path}.{name}", levels - 1)


def _refuse_text_outside_utf8(text: object, path: str) -> None:
    """Refuse a text with a lone surrogate, which JSON can represent and UTF-8 cannot.

    Python uses surrogates to decode a command's argument or a file name that is not valid UTF-8.
    """
    try:
        if isinstance(text, str) and not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise errors.InvalidRequest(path=path, reason=_NOT_UTF8) from None
