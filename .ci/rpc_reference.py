"""Write the reference of the messages on the bus from their classes, when the site is built."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from moorage import messages
from moorage.messages import basis as messages_basis
from moorage.messages.wire import Message, Mutation
from moorage.model import Value, allocations, basis, request_spec

_TOPICS = {
    "conductor": "Orders of users and operators, on the main bus",
    "scheduler": "Decisions and hosts, on the main bus",
    "placement": "Claims, allocations and cells, on the main bus",
    "conductor.cell": "`conductor.<cell uuid>`: the conductors of a cell, on the cell's bus",
    "compute": "`compute.<cell uuid>`, to the server that has the agent's name: agents, on the cell's bus",
}

_INTRODUCTION = """
Every call that the services of this version serve, with its arguments and its answer. [RPC](rpc.md) describes how a
message travels, and what to do without an answer.

A field with its default value is not sent. An unknown argument is refused; ignore unknown fields of an answer.
*Version* is the lowest version that a message with this field must have.
""".strip()
#: The names of all values; wherever one occurs, it becomes a link.
_VALUES: set[str] = set()


class _Field(NamedTuple):
    name: str
    kind: ast.expr
    default: str
    comment: str


def page() -> str:
    """Return the page: each message by topic, then each value that messages and answers contain."""
    kinds = sorted(_messages(), key=lambda kind: kind.method)
    values = sorted(_values(kinds), key=lambda value: value.__name__)
    _VALUES.update(value.__name__ for value in values)
    parts = ["# Messages", _INTRODUCTION]
    for topic, title in _TOPICS.items():
        parts += [f"## Topic `{topic}`", f"{title}."]
        for kind in kinds:
            if kind.topic == topic:
                parts += _message(kind)
    parts += ["## Values", "The values in arguments and answers, by name."]
    for value in values:
        parts += [f"### {value.__name__} {{#{value.__name__.lower()}}}", _described(value), _table(value)]
    parts += ["## Types", _aliases()]
    return "\n\n".join(part for part in parts if part)


def _messages() -> Iterator[type[Message[Any]]]:
    found = {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)}
    yield from (kind for kind in found if found.isdisjoint(kind.__subclasses__()))


def _message(kind: type[Message[Any]]) -> list[str]:
    idempotent = "; idempotent by its request id" if issubclass(kind, Mutation) else ""
    return [
        f"### {kind.method}",
        _described(kind),
        f"Since version {kind.version}{idempotent}. Answer: {_reply_in_words(kind)}.",
        _table(kind),
    ]


def _described(kind: type) -> str:
    return _without_roles(inspect.getdoc(kind) or "")


def _without_roles(text: str) -> str:
    return re.sub(r":[a-z]+:`~?([^`]+)`", r"`\1`", text)


def _table(kind: type[Value]) -> str:
    since: Mapping[str, str] = kind.since
    lines = ["| field | type | default | version | |", "|---|---|---|---|---|"]
    for field in _fields(kind).values():
        cells = [f"`{field.name}`", _in_words(field.kind), f"`{field.default}`" if field.default else "required"]
        lines.append(
            "| "
            + " | ".join([*cells, since.get(field.name, ""), _without_roles(field.comment).replace("|", "\\|")])
            + " |"
        )
    return "\n".join(lines) if len(lines) > 2 else "No fields."


def _fields(kind: type[Value]) -> dict[str, _Field]:
    """Return the fields of a class in the order of their definition, with the comments above them."""
    found: dict[str, _Field] = {}
    names = {field.name for field in msgspec.structs.fields(kind)}
    for base in reversed(kind.__mro__):
        if not (issubclass(base, Value) and base is not Value):
            continue
        source = textwrap.dedent(inspect.getsource(base))
        lines = source.splitlines()
        [tree] = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
                default = ast.unparse(node.value) if node.value else ""
                comment = _comment_above(lines, node.lineno)
                found[node.target.id] = _Field(node.target.id, node.annotation, default, comment)
    return found


def _comment_above(lines: list[str], number: int) -> str:
    comment: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        comment.insert(0, line.strip().removeprefix("#:").strip())
    return " ".join(comment)


def _values(kinds: list[type[Message[Any]]]) -> set[type[Value]]:
    found: set[type[Value]] = set()
    pending: list[Any] = [field.type for kind in kinds for field in msgspec.structs.fields(kind)]
    pending += [kind.reply_type() for kind in kinds]
    while pending:
        one = pending.pop()
        pending += get_args(one)
        if isinstance(one, type) and issubclass(one, Value) and one not in found:
            found.add(one)
            pending += [field.type for field in msgspec.structs.fields(one)]
    return found


# --- Types in words -------------------------------------------------------------------------------------------------

_PLAIN = {"str": "text", "int": "integer", "bool": "boolean", "float": "number", "object": "any value", "None": "null"}


def _aliases() -> str:
    """Return the table of the named types that are not classes."""
    lines = ["| type | is | |", "|---|---|---|"]
    sources = [inspect.getsource(module) for module in (basis, allocations, request_spec, messages_basis)]
    for source in sources:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                [target] = node.targets
                name, comment = ast.unparse(target), _comment_above(source.splitlines(), node.lineno)
                if not name.startswith(("_", "IN_PARTS")):
                    lines.append(f"| `{name}` | {_in_words(node.value)} | {_without_roles(comment)} |")
    return "\n".join(lines)


def _reply_in_words(kind: type[Message[Any]]) -> str:
    """Return the type of the answer: the type argument of the nearest base class that has one."""
    for base in kind.__mro__:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for parent in tree.bases:
            if isinstance(parent, ast.Subscript) and ast.unparse(parent.slice) != "R":
                return _in_words(parent.slice)
    raise TypeError(f"{kind.__name__} does not say what it is answered with")


def _in_words(node: ast.expr) -> str:
    """Return an annotation in words, with a link for each value in it."""
    match node:
        case ast.Name(id=name):
            return f"[{name}](#{name.lower()})" if name in _VALUES else _PLAIN.get(name, f"`{name}`")
        case ast.Constant(value=value):
            return _PLAIN["None"] if value is None else f"`{value!r}`"
        case ast.BinOp(left=left, right=right):
            return f"{_in_words(left)} or {_in_words(right)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *limits])):
            return f"{_in_words(kind)} ({', '.join(_limit(limit) for limit in limits)})"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            return " or ".join(_in_words(one) for one in getattr(choices, "elts", [choices]))
        case ast.Subscript(value=ast.Name(id="dict" | "Mapping"), slice=ast.Tuple(elts=[key, value])):
            return f"map of {_in_words(key)} to {_in_words(value)}"
        case ast.Subscript(value=ast.Name(id="list"), slice=kind):
            return f"list of {_in_words(kind)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[kind, ast.Constant(value=value)])) if (
            value is ...
        ):
            return f"list of {_in_words(kind)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=kinds)):
            return f"list of {', '.join(_in_words(kind) for kind in kinds)}"
        case _:
            return f"`{ast.unparse(node)}`".replace("|", "\\|")


def _limit(meta: ast.expr) -> str:
    assert isinstance(meta, ast.Call)
    return ", ".join(f"{word.arg} `{ast.unparse(word.value)}`".replace("|", "\\|") for word in meta.keywords)
