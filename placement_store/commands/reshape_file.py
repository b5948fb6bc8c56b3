"""Read the file of `moorage resource provider reshape`, and check it as a whole."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from moorage import errors
from moorage.messages import wire
from moorage.messages.providers import CallersDeals, Children, MoveInstructions
from moorage.model import Value
from placement_store.commands.yaml_document import Step, YamlDocument

T = TypeVar("T")

#: A step of a path as msgspec and :mod:`moorage.messages.wire` write it; msgspec writes every key as `[...]`.
_STEP = re.compile(r"\.(?P<field>\w+)|\[(?P<position>\d+)\]|\['(?P<key>[^']*)'\]|(?P<some_key>\[\.\.\.\])")


class HostReshape(Value, frozen=True, kw_only=True):
    """A reshape of one host's tree, carried out in one transaction.

    The fields are those of :class:`~moorage.messages.ReshapeByInstructions`.
    """

    instructions: MoveInstructions
    providers: Children = ()
    #: The allocations whose target the caller chooses.
    allocations: CallersDeals = ()

    def digest(self) -> str:
        """Return a digest of the content, in hexadecimal."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    @property
    def named(self) -> list[str]:
        """The sources and targets of its moves, as they are named, each once."""
        both = ((move.from_resource_provider, move.to_resource_provider) for move in self.instructions)
        return list(dict.fromkeys(name for pair in both for name in pair))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the file, and the line on which it begins."""

    line: int
    reshape: HostReshape

    @property
    def host(self) -> str:
        """The name of the entry in the output: the source of its first move."""
        return self.reshape.instructions[0].from_resource_provider


class _Document(Value, frozen=True, kw_only=True):
    """The whole of the file."""

    reshape: Annotated[list[Any], Meta(min_length=1)]


class MalformedFile(Exception):
    """The file has faults; nothing was done."""

    def __init__(self, faults: Sequence[errors.InvalidRequest]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        #: All faults that were found, each with its line.
        self.faults = faults


def read(path: Path) -> list[Entry]:
    """Read the entries of a file.

    :raises MalformedFile: with the first fault of every entry.
    """
    try:
        document = YamlDocument(path)
        outer = _checked(document, _Document, ())
    except errors.InvalidRequest as fault:
        raise MalformedFile([fault]) from None
    entries: list[Entry] = []
    faults: list[errors.InvalidRequest] = []
    for position in range(len(outer.reshape)):
        steps = ("reshape", position)
        try:
            entries.append(Entry(document.line(steps), _checked(document, HostReshape, steps)))
        except errors.InvalidRequest as fault:
            faults.append(fault)
    faults += _doubles(document, entries)
    if faults:
        raise MalformedFile(faults)
    return entries


def _doubles(document: YamlDocument, entries: Sequence[Entry]) -> Iterator[errors.InvalidRequest]:
    """Yield a fault for each entry with a provider of another entry: a host is reshaped in one transaction."""
    first: dict[str, Entry] = {}
    for entry in entries:
        for name in entry.reshape.named:
            if (other := first.setdefault(name, entry)) is not entry:
                reason = f"the entry of line {other.line} is about {name} too: write what is of one tree into one entry"
                yield document.fault(entry.line, reason)
                break


# --- The line of a fault --------------------------------------------------------------------------------------------


def _checked(document: YamlDocument, kind: type[T], steps: tuple[Step, ...]) -> T:
    """Decode a part of the document.

    :raises InvalidRequest: with the line of the fault.
    """
    data = document.data
    for step in steps:
        data = data[step]
    try:
        return wire.decode_strictly(kind, data)
    except errors.InvalidRequest as fault:
        inner = _steps_to(kind, data, fault)
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in (*steps, *inner))
        reason = f"{fault.reason} - at {where.removeprefix('.') or 'the top'}"
        raise document.fault(document.line((*steps, *inner)), reason) from None


def _steps_to(kind: type[Any], data: Any, fault: errors.InvalidRequest) -> list[Step]:
    """Return the path to a fault, as far as it can be determined."""
    steps: list[Step] = []
    part = data
    for found in _STEP.finditer(fault.path):
        named = found["field"] or found["position"] or found["key"]
        step = named or _culprit(kind, data, steps, part, fault)
        if step is None:
            return steps
        steps.append(step if isinstance(part, dict) else int(step))
        part = part[steps[-1]]
    culprit = _culprit(kind, data, steps, part, fault)
    return steps if culprit is None else [*steps, culprit]


def _culprit(kind: type[Any], data: Any, steps: Sequence[Step], part: Any, fault: errors.InvalidRequest) -> str | None:
    """Find the faulty key of a mapping: without it, there is no fault at this path."""
    for key in part if isinstance(part, dict) else ():
        without = {name: value for name, value in part.items() if name != key}
        try:
            wire.decode_strictly(kind, _replaced(data, steps, without))
        except errors.InvalidRequest as other:
            if other.path == fault.path:
                continue
        return str(key)
    return None


def _replaced(data: Any, steps: Sequence[Step], part: Any) -> Any:
    """Return a copy of ``data`` with another ``part`` at the path ``steps``."""
    if not steps:
        return part
    first, *rest = steps
    copy = data.copy()
    copy[first] = _replaced(data[first], rest, part)
    return copy
