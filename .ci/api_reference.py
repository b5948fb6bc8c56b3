"""Write the reference of the classes for plug-ins and drivers from their docstrings, when the site is built."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from rpc_reference import _comment_above, _without_roles

import moorage.testing
from compute import driver, provider_tree
from moorage import model, plugin
from moorage.model import Value

#: A page of the reference: its title, its first sentences, and what it describes.
_PAGES: dict[str, tuple[str, str, list[Any]]] = {
    "filters-and-weighers": (
        "API: Filter and Weigher",
        (
            "The base classes of filters and weighers, from `moorage.plugin`. How to write one: [Writing a "
            "plug-in](../writing-a-plugin.md)."
        ),
        [plugin.Filter, plugin.ConditionsFilter, plugin.Weigher, plugin.any_of, plugin.measured, plugin.BadValue],
    ),
    "hosts": (
        "API: Host and HostView",
        (
            "The interface to one host (`Host`) and to all hosts at once (`HostView`) for filters and weighers, from "
            "`moorage.plugin`. Both have the same methods."
        ),
        [plugin.Host, plugin.HostView, plugin.HostInventory],
    ),
    "requests": (
        "API: RequestSpec, RequestFilter and Cloud",
        (
            "The requests that plug-ins decide on, from `moorage.model`, and the tools for request filters, from "
            "`moorage.plugin`. Requests are frozen: `msgspec.structs.replace` returns a changed copy."
        ),
        [
            *(plugin.RequestFilter, plugin.Cloud, plugin.Aggregate, plugin.RequestRefused, model.RequestSpec),
            *(model.Flavor, model.Image, model.ResourceGroup, model.ResourceRequest, model.ServerGroup),
            model.Destination,
        ],
    ),
    "candidates": (
        "API: AllocationRequest",
        (
            "One way in which the providers of a host may serve a request, as passed to `Filter.passes_candidate`, "
            "from `moorage.model`."
        ),
        [model.AllocationRequest, model.ProviderAmounts],
    ),
    "drivers": (
        "API: Driver",
        (
            "The contract between an agent and its hypervisors, from `compute.driver`. An entry point of "
            "`moorage.drivers` names the class, and `[compute] driver` the entry point. `compute/fake` is one."
        ),
        [driver.Driver, driver.GuestSpec, driver.GuestOrder, driver.ReshapeNeeded, provider_tree.ProviderTree],
    ),
    "testing": (
        "API: moorage.testing",
        inspect.getdoc(moorage.testing) or "",
        [
            getattr(moorage.testing, name)
            for name in sorted(vars(moorage.testing))
            if inspect.isfunction(getattr(moorage.testing, name)) or inspect.isclass(getattr(moorage.testing, name))
        ],
    ),
}


def pages() -> dict[str, str]:
    """Return each page of the reference by its path on the site."""
    return {f"api/{name}.md": _page(*parts) for name, parts in _PAGES.items()}


def _page(title: str, introduction: str, described: list[Any]) -> str:
    parts = [f"# {title}", introduction]
    for one in described:
        parts += _class(one, described) if inspect.isclass(one) else _function(_tree(one), "##", "")
    return "\n\n".join(part for part in parts if part)


def _class(kind: type, described: list[Any]) -> Iterator[str]:
    """Yield the description of a class: its docstring, its fields, and its public methods.

    :param described: everything that the page describes; a base class that is among it becomes a link.
    """
    yield f"## {kind.__name__} {{#{kind.__name__.lower()}}}"
    for base in kind.__bases__:
        if base in described:
            yield f"A [{base.__name__}](#{base.__name__.lower()}), with all that this has."
    yield docstring(inspect.getdoc(kind) or "")
    tree = _tree(kind)
    yield _fields(kind, tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not (node.name.startswith("_") and node.name != "__len__"):
            yield from _function(node, "###", f"{kind.__name__.lower()}.")


def _tree(one: Any) -> Any:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    return tree


def _function(node: ast.FunctionDef, heading: str, prefix: str) -> list[str]:
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix("cls").removeprefix(", ")
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    signature = f"{node.name}{result}" if "property" in marks else f"{node.name}({arguments}){result}"
    must = "To be implemented. " if "abstractmethod" in marks and prefix != "hostview." else ""
    text = docstring(ast.get_docstring(node) or "")
    return [f"{heading} {node.name} {{#{prefix}{node.name}}}", f"```python\n{signature}\n```", must + text]


def _fields(kind: type, tree: ast.ClassDef) -> str:
    """Return the table of a class's annotated names, with the comments above them; empty if the class has none."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    required = dataclasses.is_dataclass(kind) or issubclass(kind, Value)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            default = f"`{ast.unparse(node.value)}`" if node.value else "required" if required else ""
            cells = [f"`{node.target.id}`", f"`{_kind(node.annotation)}`", default, _comment_above(lines, node.lineno)]
            rows.append("| " + " | ".join(_without_roles(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _kind(annotation: ast.expr) -> str:
    """Return an annotation without the limits that are checked when a value is decoded."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            return _kind(kind)
        case _:
            return ast.unparse(annotation)


def docstring(text: str) -> str:
    """Return a docstring as Markdown: roles as code, and parameters and exceptions as a list."""
    listed = re.sub(
        r"^:(param|raises) ([\w~., ]+): ",
        lambda field: f"- {'raises ' if field[1] == 'raises' else ''}`{field[2]}`: ",
        _without_roles(inspect.cleandoc(text)),
        flags=re.MULTILINE,
    )
    # A list needs an empty line before it.
    return re.sub(r"(?m)^((?!- |\s).+)\n(- (?:raises )?`)", r"\1\n\n\2", listed)
