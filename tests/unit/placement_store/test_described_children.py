"""Test the children that a reshape describes: which provider a reference names, and what finding it costs."""

import pytest
from support.moorage.executed_lines import executed_lines

from moorage import errors, ids
from moorage.model import ChildProvider
from placement_store.reshapes.described_children import ExtendedTree, extend_tree
from placement_store.reshapes.reshape_tree import ReshapeTree, TreeProvider

ROOT, PART, NEW = (ids.derived("described", name) for name in ("root", "part", "new"))


def extended(*described: ChildProvider, named: str = "part") -> ExtendedTree:
    """Extend a tree of a root and a part, the name of which can be chosen."""
    providers = [TreeProvider(1, ROOT, "root", None), TreeProvider(2, PART, named, ROOT)]
    tree = ReshapeTree({one.uuid: one for one in providers}, {}, {})
    return extend_tree(tree, described, lambda name: ids.derived("described", name))


def test_a_reference_is_the_uuid_or_the_name_of_an_existing_or_a_new_provider() -> None:
    found = extended(ChildProvider(name="new", parent="part"), ChildProvider(name="below", parent="new"))

    assert [found.uuid_of(text) for text in ("root", ROOT, "part", PART, "new", NEW)] == [
        ROOT,
        ROOT,
        PART,
        PART,
        NEW,
        NEW,
    ]
    assert [child.parent_uuid for child in found.new] == [PART, NEW]
    with pytest.raises(errors.ProviderNotFound):
        found.uuid_of("another")


def test_a_uuid_takes_precedence_over_an_equal_name() -> None:
    assert extended(named=ROOT).uuid_of(ROOT) == ROOT
    assert extended(ChildProvider(name="new", parent="root"), named=NEW).uuid_of(NEW) == NEW


def test_a_child_that_exists_is_not_created_again() -> None:
    found = extended(ChildProvider(name="part", parent="root"))

    assert (found.new, found.uuid_of("part")) == ([], PART)


def test_a_reference_to_one_of_a_thousand_children_needs_no_search() -> None:
    names = [f"child {number}" for number in range(1000)]
    found = extended(*(ChildProvider(name=name, parent="root") for name in names))

    # A search would execute at least a line for each child.
    assert executed_lines(lambda: [found.uuid_of(name) for name in names]) < 20 * len(names)
