"""Read the file of `moorage resource provider reshape`, and check it as a whole."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import yaml
from msgspec import Meta

from moorage import errors
from moorage.messages import wire
from moorage.messages.providers import Children, GivenReallocations, MoveInstructions
from moorage.model import Value

#: The key of a mapping, or the position in a list.
Step = str | int


class _Loader(yaml.SafeLoader):
    """Adds the line to a value that is not of its type, such as the date 2020-99-99."""

    # Without sets: their items have no positions, by which the parts of the file are found.
    yaml_constructors: ClassVar = {
        tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag != "tag:yaml.org,2002:set"
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, AttributeError, LookupError):
            kind = node.tag.rpartition(":")[2]
            reason = f"{node.value!r} is not a value of the type {kind}"
            raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark) from None


class YamlDocument:
    """The one document of a file, YAML or its subset JSON.

    :raises InvalidRequest: with the file, the line and the fault: it cannot be read or is not YAML, a mapping has a
        duplicate key, or a part refers to itself.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        text = self._text()
        try:
            if (node := yaml.compose(text, _Loader)) is None:
                raise self.fault(1, "the file is empty")
            self._refuse_loops_and_doubles(node, ())
            #: The content, as builtins.
            self.data: Any = _Loader("").construct_document(node)
            self._node = node
        except yaml.MarkedYAMLError as fault:
            mark = fault.problem_mark or fault.context_mark
            line = 1 if mark is None else mark.line + 1
            raise self.fault(line, fault.problem or str(fault)) from None
        except RecursionError:
            raise self.fault(1, "it is nested too deeply") from None

    def fault(self, line: int, reason: str) -> errors.InvalidRequest:
        """Build the error for a line of the file."""
        return errors.InvalidRequest(path=f"{self._path}:{line}", reason=reason)

    def line(self, steps: Sequence[Step]) -> int:
        """Return the line, from 1, of the part at the path ``steps``; for a value of a mapping, the line of its key."""
        node, line = self._node, self._node.start_mark.line
        for step in steps:
            if (found := _child(node, step)) is None:
                break
            node, line = found
        return line + 1

    def _text(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as fault:
            raise errors.InvalidRequest(path=str(self._path), reason=fault.strerror or str(fault)) from None
        except UnicodeDecodeError:
            raise errors.InvalidRequest(path=str(self._path), reason="it is not text in UTF-8") from None
        for number, line in enumerate(text.splitlines(), start=1):
            if unprintable := yaml.reader.Reader.NON_PRINTABLE.search(line):
                raise self.fault(number, f"the character {unprintable.group()!r} may not stand in YAML")
        return text

    def _refuse_loops_and_doubles(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> None:
        if any(node is ancestor for ancestor in above):
            raise self.fault(node.start_mark.line + 1, "this refers to itself")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise self.fault(key.start_mark.line + 1, f"the key {key.value!r} stands here a second time")
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
                self._refuse_loops_and_doubles(value, (*above, node))
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                self._refuse_loops_and_doubles(value, (*above, node))


def _child(node: yaml.Node, step: Step) -> tuple[yaml.Node, int] | None:
    """Return a child of a mapping or of a list, and the line on which it begins."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        child = node.value[step]
        return child, child.start_mark.line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == str(step):
                return value, key.start_mark.line
    return None


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
    allocations: GivenReallocations = ()

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
    """Yield a fault for each entry that names a provider of an earlier entry: a tree is one entry."""
    first: dict[str, Entry] = {}
    for entry in entries:
        for name in entry.reshape.named:
            if (other := first.setdefault(name, entry)) is not entry:
                reason = f"the entry of line {other.line} is about {name}, too: use one entry per tree"
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
        if (step := named or _culprit(kind, data, steps, part, fault)) is None:
            return steps
        steps.append(step if isinstance(part, dict) else int(step))
        part = part[steps[-1]]
    culprit = _culprit(kind, data, steps, part, fault)
    return steps if culprit is None else [*steps, culprit]


def _culprit(kind: type[Any], data: Any, steps: Sequence[Step], part: Any, fault: errors.InvalidRequest) -> str | None:
    """Return the faulty key of a mapping: without this key, there is no fault at this path."""
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
