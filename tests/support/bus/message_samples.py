"""Samples of every message, generated from its type; and the recorded messages of released versions.

As a script it records the messages of one version that are not recorded yet: `python …/message_samples.py 1.6`.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import inspect

from moorage import ids, messages
from moorage.messages.wire import Message, encode
from moorage.model import Value

RECORDS = Path(__file__).parent / "recorded_messages"
#: Every released version.
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7", "1.8")
_TEXTS = ("a", "NAME", ids.derived("sample"), "sample")


def every_message() -> list[type[Message[Any]]]:
    found = [value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Message)]
    return [kind for kind in found if not any(child in found for child in kind.__subclasses__())]


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def versions_of(kind: type[Message[Any]]) -> list[str]:
    """Return the versions that introduced a message or a part of it."""
    nested = (version for value in nested_values(kind) for version in value.since.values())
    return sorted({kind.version, *kind.since.values(), *nested}, key=parts)


def nested_values(kind: type[Value]) -> set[type[Value]]:
    """Return the values that a kind of value contains, at any depth."""
    found: set[type[Value]] = set()
    pending: list[Any] = [field.type for field in msgspec.structs.fields(kind)]
    while pending:
        one = pending.pop()
        pending += get_args(one)
        if isinstance(one, type) and issubclass(one, Value) and one not in found:
            found.add(one)
            pending += [field.type for field in msgspec.structs.fields(one)]
    return found


class Sampler:
    """Generates content with every field that a version has, or only with the required fields."""

    def __init__(self, kind: type[Message[Any]] | None, version: str, *, full: bool) -> None:
        self._since = {} if kind is None else kind.since
        self._version = parts(version)
        self._full = full

    def of(self, kind: Any) -> Any:
        return self._sample(inspect.type_info(kind), ())

    def _fields(self, info: inspect.StructType, path: tuple[str, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        assert issubclass(info.cls, Value)
        for field in info.fields:
            at = (*path, field.name)
            versions = [self._since.get(".".join(at)), info.cls.since.get(field.name) if path else None]
            if any(version is not None and parts(version) > self._version for version in versions):
                continue
            if field.required:
                made[field.name] = self._sample(field.type, at)
            elif self._full and (value := self._sample(field.type, at)) != _default(field):
                made[field.name] = value
        return made

    def _sample(self, info: Any, path: tuple[str, ...]) -> Any:
        match info:
            case inspect.StructType():
                return self._fields(info, path)
            case inspect.UnionType():
                return self._sample(next(one for one in info.types if not isinstance(one, inspect.NoneType)), path)
            case inspect.Metadata():
                return self._sample(info.type, path)
            case inspect.DictType():
                if not self._full and not info.min_length:
                    return {}
                return {self._sample(info.key_type, path): self._sample(info.value_type, (*path, "*"))}
            case inspect.ListType() | inspect.VarTupleType():
                few = 1 if self._full else info.min_length or 0
                return [self._sample(info.item_type, (*path, "*")) for _ in range(few)]
            case inspect.TupleType():
                return [self._sample(one, (*path, "*")) for one in info.item_types]
        return _scalar(info)


def _default(field: inspect.Field) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return encode(field.default_factory())
    if field.default is msgspec.NODEFAULT:
        return msgspec.UNSET
    return encode(field.default)


def _scalar(info: Any) -> Any:
    match info:
        case inspect.BoolType():
            return True
        case inspect.LiteralType():
            return info.values[-1]
        case inspect.IntType():
            return max(info.ge or 0, 0) + (1 if info.le is None or info.le > (info.ge or 0) else 0)
        case inspect.FloatType():
            return float(max(info.ge or 0, info.gt or 0)) + 0.5
        case inspect.StrType():
            return next(text for text in _TEXTS if info.pattern is None or re.match(info.pattern, text))
        case inspect.AnyType():
            return {"any": 1}
        case inspect.NoneType():
            return None
    raise TypeError(f"there is no sample of {info}")


def samples(kind: type[Message[Any]], version: str) -> Iterator[dict[str, Any]]:
    """Yield messages of this version: one with all fields; if it was new then, also one with only required fields."""
    yield {"method": kind.method, "content": Sampler(kind, version, full=True).of(kind)}
    if version == kind.version:
        yield {"method": kind.method, "content": Sampler(kind, version, full=False).of(kind)}


def reply(kind: type[Message[Any]]) -> Any:
    return Sampler(None, "99", full=True).of(kind.reply_type())


def fields() -> dict[str, list[str]]:
    """Return the fields of every message and of every value in a message, by the name of the class."""
    kinds = {*every_message(), *(nested for kind in every_message() for nested in nested_values(kind))}
    return {kind.__name__: sorted(kind.__struct_fields__) for kind in sorted(kinds, key=lambda kind: kind.__name__)}


def record(version: str) -> None:
    """Record the messages of a version; existing records stay as they are."""
    by_topic: dict[str, list[Any]] = {}
    for kind in sorted(every_message(), key=lambda kind: (kind.topic, kind.method)):
        if version in versions_of(kind):
            by_topic.setdefault(kind.topic, []).extend(samples(kind, version))
    for topic, recorded in by_topic.items():
        _write(RECORDS / f"{topic}-{version}.json", recorded)


def _write(path: Path, lines: list[Any]) -> None:
    if not path.exists():
        path.write_text("[\n" + ",\n".join(json.dumps(line, sort_keys=True) for line in lines) + "\n]\n")


def record_replies(version: str) -> None:
    """Record the answers to all messages, and the fields that all of them have in a version."""
    known = sorted(every_message(), key=lambda kind: (kind.topic, kind.method))
    _write(
        RECORDS / f"replies-{version}.json",
        [{"topic": kind.topic, "method": kind.method, "content": reply(kind)} for kind in known],
    )
    path = RECORDS / f"fields-{version}.json"
    if not path.exists():
        path.write_text(json.dumps(fields(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        record(wanted)
        record_replies(wanted)
