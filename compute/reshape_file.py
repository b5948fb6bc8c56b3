"""The reshapes that a driver wants, as the file that `moorage resource provider reshape` reads."""

from collections.abc import Sequence

import yaml

from compute.tree_changes import TreeChange
from moorage.messages.wire import encode


def text_of(changes: Sequence[TreeChange]) -> str:
    """Return the file with one entry for each host; a comment above each of them names the host."""
    if not changes:
        return "# The driver wants nothing reshaped.\n"
    lines = ["reshape:\n"]
    for change in changes:
        entry = {
            "instructions": encode(change.instructions),
            "providers": encode(change.children()),
            "allocations": encode(change.dealt),
        }
        said = {name: value for name, value in entry.items() if value}
        lines += [f"# {change.host.service_host}\n", yaml.safe_dump([said], sort_keys=False)]
    return "".join(lines)
