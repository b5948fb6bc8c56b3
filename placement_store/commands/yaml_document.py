"""YAML and JSON documents with the line number of each part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from moorage import errors

#: The key of a mapping, or the position in a list.
Step = str | int


class YamlDocument:
    """The one document of a file, YAML or its subset JSON.

    :raises InvalidRequest: with the file, the line and the fault: it cannot be read or is not YAML, a mapping has a
        duplicate key, or a part refers to itself.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        loader = yaml.SafeLoader(self._text())
        try:
            node = loader.get_single_node()
            if node is None:
                raise self.fault(1, "the file is empty")
            self._refuse_loops_and_doubles(node, ())
            #: The content, as builtins.
            self.data: Any = loader.construct_document(node)
            self._node = node
        except yaml.MarkedYAMLError as fault:
            mark = fault.problem_mark or fault.context_mark
            line = 1 if mark is None else mark.line + 1
            raise self.fault(line, fault.problem or str(fault)) from None
        finally:
            loader.dispose()

    def fault(self, line: int, reason: str) -> errors.InvalidRequest:
        """Build the error for a line of the file."""
        return errors.InvalidRequest(path=f"{self._path}:{line}", reason=reason)

    def line(self, steps: Sequence[Step]) -> int:
        """Return the line, from 1, of the part at the path ``steps``; for a value of a mapping, the line of its key."""
        node, line = self._node, self._node.start_mark.line
        for step in steps:
            found = _child(node, step)
            if found is None:
                break
            node, line = found
        return line + 1

    def _text(self) -> str:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as fault:
            raise errors.InvalidRequest(path=str(self._path), reason=fault.strerror or str(fault)) from None
        except UnicodeDecodeError:
            raise errors.InvalidRequest(path=str(self._path), reason="it is no text in UTF-8") from None
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
