"""Deliberate breaks of promises: each changes one line of the product, for `--load` of the simulation's command."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path


def _break(module: str, line: str, broken: str) -> None:
    """Import a module of the product with one line of it changed, before anything else imports it."""
    assert module not in sys.modules, f"{module} is imported already"
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert source.count(line) == 1, f"{line!r} is {source.count(line)} times in {module}"
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    exec(compile(source.replace(line, broken), spec.origin, "exec"), made.__dict__)
    parent, _, name = module.rpartition(".")
    setattr(sys.modules[parent], name, made)


#: A claim does not look whether it fits: whoever decides on an older view over-commits.
unguarded_claims: Callable[[], None] = partial(
    _break,
    "placement_store.allocations.capacity",
    "or_(growth[i] <= 0, table.used + growth[i] <= (table.total - table.reserved) * table.allocation_ratio),",
    "growth[i] == growth[i],",
)
#: The rules of server groups hold in the view alone.
hoped_for_groups: Callable[[], None] = partial(
    _break,
    "placement_store.server_groups.rules",
    "            _GainedRoot(connection, group, root_id, members, written).verify()",
    "            pass",
)
#: A caller that names an older generation than the present one is not refused.
ignored_generations: Callable[[], None] = partial(
    _break, "placement_store.claims.put", "    if found != wanted.generation:", "    if False:"
)
