"""Test how a tree of resource providers is drawn."""

from moorage.ids import derived
from moorage.model import ResourceProvider
from placement_store.commands.tree import drawn


def provider(name: str, parent: str | None = None) -> ResourceProvider:
    return ResourceProvider(
        uuid=derived("tree", name),
        name=name,
        generation=0,
        root_provider_uuid=derived("tree", "host"),
        parent_provider_uuid=None if parent is None else derived("tree", parent),
    )


def test_children_are_drawn_below_their_parents_in_the_order_of_their_names() -> None:
    providers = [
        provider("host"),
        provider("numa1", "host"),
        provider("numa0", "host"),
        provider("gpu1", "numa0"),
        provider("gpu0", "numa0"),
        provider("nic", "numa1"),
    ]
    places = list(drawn(providers))
    assert [place.branch + place.provider.name for place in places] == [
        "host",
        "├─ numa0",
        "│  ├─ gpu0",
        "│  └─ gpu1",
        "└─ numa1",
        "   └─ nic",
    ]
    # The prefix of further lines of a row: the branch to the next sibling, and the one to the first child.
    assert [place.stem.rstrip() for place in places] == ["│", "│  │", "│  │", "│", "   │", ""]


def test_a_tree_is_drawn_however_deep_it_is() -> None:
    depth = 1100
    providers = [provider(f"level{n}", f"level{n - 1}" if n else None) for n in range(depth)]

    assert [place.provider for place in drawn(providers)] == providers
