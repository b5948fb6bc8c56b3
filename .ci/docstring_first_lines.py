"""Check that the first line of each docstring names what it describes, in the order verb, noun, object.

A first word that only a clause can follow ("What is held …", "Of those that …") leaves the reader without a subject.
The docstrings of error classes are messages to operators, and are left out.
Usage: docstring_first_lines.py FOLDER...
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = frozenset({"What", "Who", "Of", "By", "Those", "That", "Whoever", "Whatever", "Whose", "Which", "Whether"})
ERRORS = Path("moorage/errors")


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line number and the first line of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and path.is_relative_to(ERRORS):
            continue
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.partition("\n")[0]


def main() -> int:
    """Print each first line that begins with a forbidden word; return 1 if there is one."""
    wrong = [
        f"{path}:{line}: {first}"
        for folder in sys.argv[1:]
        for path in sorted(Path(folder).rglob("*.py"))
        for line, first in first_lines(path)
        if first.partition(" ")[0].rstrip(",:") in FORBIDDEN
    ]
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
