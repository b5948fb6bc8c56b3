"""How a message travels: typed, versioned, decoded strictly where it arrives and leniently where it returns."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Generic, Self, TypeVar, get_args

import msgspec

from moorage import errors
from moorage.model import RequestId, Value

R = TypeVar("R")
T = TypeVar("T")


class Message(Value, Generic[R], frozen=True, kw_only=True):
    """A call of one method; the type argument is what it is answered with."""

    topic: ClassVar[str]
    method: ClassVar[str]
    #: The version of the topic's interface that brought this method.
    version: ClassVar[str] = "1.0"
    #: Fields that came later, each with the version that brought it; one within another's value by both, with a dot.
    #: A field that is new in a nested value since version 1.6 stands in that value's own ``since`` instead.
    since: ClassVar[Mapping[str, str]] = {}
    #: Optional fields, null by default, that a server of a former release can do without: it gets the message without
    #: them. Most name the state which the message may act on. They are no part of the digest.
    guards: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def reply_type(cls) -> Any:
        """Return the type that the answer is decoded as."""
        for base in getattr(cls, "__orig_bases__", ()):
            if arguments := get_args(base):
                return arguments[0]
        raise TypeError(f"{cls.__name__} does not say what it is answered with")

    def lowest_version(self) -> str:
        """Return the lowest version that carries all that this message says."""
        said = encode(self)
        versions = [self.version, *(version for name, version in self.since.items() if _says(said, name))]
        if _later_fields(type(self)):
            versions += _versions_within(self, said)
        return max(versions, key=_parts)

    @classmethod
    def newest_version(cls) -> str:
        """Return the version that carries all that such a message can say."""
        return max([cls.version, *cls.since.values(), *_later_fields(cls)], key=_parts)

    def unguarded(self) -> Self:
        """Return the same message without its guards, as a release that does not know them understands it."""
        return msgspec.structs.replace(self, **dict.fromkeys(self.guards))


class Mutation(Message[R], Generic[R], frozen=True, kw_only=True):
    """A message that changes something: it names a request, so that repeating it changes nothing more."""

    request_id: RequestId

    def digest(self) -> bytes:
        """Return a digest of all content but the request id and the guards (32 bytes)."""
        content = encode(self.unguarded() if self.guards else self)
        del content["request_id"]
        return hashlib.sha256(msgspec.json.encode([self.topic, self.method, content], order="sorted")).digest()


def _says(content: Any, path: str) -> bool:
    """Tell whether an encoded message has a field, or one within the value of another."""
    for name in path.split("."):
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True


@cache
def _later_fields(kind: type[Value]) -> frozenset[str]:
    """Return the versions that brought fields of the values nested in a kind of value."""
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
    """Yield the version of each field that an encoded message has in a nested value; it has the value's shape."""
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
    """Return a version as numbers, which compare as they should."""
    return tuple(int(part) for part in version.split("."))


_PREPARING = threading.Lock()
_PREPARED: set[type[Value]] = set()


def prepare() -> None:
    """Have msgspec work out all values there are by now, before several threads meet one for the first time.

    It works out what a class looks like when it first decodes one. Two threads that come to that at the same moment
    crash the process (a segmentation fault in msgspec 0.22): so it is done by whatever opens a bus or a database,
    which is before any thread of its service. A service that was started again under load died of it about once in a
    hundred starts, just after it was ready, with nothing in its log.
    """
    with _PREPARING:
        for kind in _known_values(Value) - _PREPARED:
            # One that cannot be worked out is told to whoever decodes it.
            with suppress(TypeError, NameError):
                msgspec.json.Decoder(kind)
            _PREPARED.add(kind)


def _known_values(kind: type[Value]) -> set[type[Value]]:
    return {kind}.union(*(_known_values(child) for child in kind.__subclasses__()))


def encode(value: object) -> Any:
    """Return ``value`` as JSON-safe builtins; fields at their default are left out."""
    return msgspec.to_builtins(value)


def decode(kind: type[T], data: object) -> T:
    """Return a reply or stored value; fields unknown to this version are ignored.

    :raises InvalidRequest: naming the path of the fault.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as fault:
        # A fault of the whole has no path, and one of a key is said to be at "`key` in" the path of what has it.
        reason, _, path = str(fault).partition(" - at ")
        path = path.strip("`").rpartition("`")[2]
        raise errors.InvalidRequest(path=path or "$", reason=reason[:300]) from fault


def decode_strictly(kind: type[T], data: object) -> T:
    """Return a request; beside what :func:`decode` refuses, a field that this version does not know is refused.

    :raises InvalidRequest: naming the path of the fault.
    """
    value = decode(kind, data)
    _refuse_unknown_fields(value, data, "$")
    return value


def _refuse_unknown_fields(value: object, data: object, path: str) -> None:
    """Walk a decoded value beside the data it came from, which has the same shape."""
    if isinstance(value, msgspec.Struct) and isinstance(data, dict):
        for name in data:
            if name not in value.__struct_fields__:
                raise errors.InvalidRequest(path=path, reason=f"unknown field {str(name)[:100]!r}")
            _refuse_unknown_fields(getattr(value, name), data[name], f"{path}.{name}")
    elif isinstance(value, dict) and isinstance(data, dict):
        for name, part in value.items():
            _refuse_unknown_fields(part, data[name], f"{path}[{name!r}]")
    elif isinstance(value, list | tuple) and isinstance(data, list | tuple):
        for position, part in enumerate(value):
            _refuse_unknown_fields(part, data[position], f"{path}[{position}]")
