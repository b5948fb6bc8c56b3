"""Resolve the child providers that a reshape describes: some exist, the others are to be created."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moorage import errors, ids
from moorage.model import ChildProvider, InventoryFields
from placement_store.reshapes.distribution import InventoryKey
from placement_store.reshapes.reshape_tree import ReshapeTree


@dataclass(frozen=True, slots=True)
class NewChild:
    """A provider to be created."""

    uuid: str
    parent_uuid: str
    described: ChildProvider


@dataclass(frozen=True, slots=True)
class ExtendedTree:
    """A tree together with the children that a reshape will create in it."""

    tree: ReshapeTree
    new: Sequence[NewChild]
    #: The fields that the request sets on inventories where amounts arrive.
    fields: Mapping[InventoryKey, InventoryFields]
    #: Name by uuid.
    names: Mapping[str, str]
    #: The uuid of each provider by its uuid and by its name: a request has up to a hundred thousand references.
    uuids: Mapping[str, str]

    def uuid_of(self, reference: str) -> str:
        """Return the uuid of the provider, existing or new, to which a uuid or a name refers.

        :raises ProviderNotFound: it neither exists nor is described.
        """
        return _find(self.uuids, reference)


def extend_tree(tree: ReshapeTree, described: Sequence[ChildProvider], new_uuid: Callable[[str], str]) -> ExtendedTree:
    """Extend a tree by the children that are described.

    :param new_uuid: generates the uuid of a new provider for which only the name is given.
    :raises InvalidRequest: a child is described twice, exists with another name or parent, or is its own ancestor.
    :raises ProviderNotFound: a parent neither exists nor is described.
    """
    _refuse_doubles(described)
    names = {one.uuid: one.name for one in tree.providers.values()}
    by_name = {name: uuid for uuid, name in names.items()}
    uuids = [
        _identity(tree, by_name, child, f"$.providers[{i}]") or child.uuid or new_uuid(child.name)
        for i, child in enumerate(described)
    ]
    new = {uuid: child.name for uuid, child in zip(uuids, described, strict=True) if uuid not in tree.providers}
    # A uuid takes precedence over an equal name, and a new provider over an existing one.
    known = by_name | _themselves(names) | {name: uuid for uuid, name in new.items()} | _themselves(new)
    children: list[NewChild] = []
    for position, (uuid, child) in enumerate(zip(uuids, described, strict=True)):
        parent_uuid = _find(known, child.parent)
        if uuid in new:
            children.append(NewChild(uuid, parent_uuid, child))
        elif tree.providers[uuid].parent_uuid != parent_uuid:
            raise errors.InvalidRequest(
                path=f"$.providers[{position}].parent", reason=f"{child.name} is there, under another parent"
            )
    _refuse_loops(children, tree, {uuid: position for position, uuid in enumerate(uuids)})
    fields = {
        (uuid, name): wanted
        for uuid, child in zip(uuids, described, strict=True)
        for name, wanted in child.inventories.items()
    }
    return ExtendedTree(tree, children, fields, names | new, known)


def _themselves(uuids: Iterable[str]) -> dict[str, str]:
    return {uuid: uuid for uuid in uuids}


def _find(known: Mapping[str, str], reference: str) -> str:
    """Return the uuid of a provider, given by its uuid or else its name.

    :raises ProviderNotFound: it neither exists nor is described.
    """
    if reference in known:
        return known[reference]
    if (uuid := ids.canonical(reference)) is not None and uuid in known:
        return known[uuid]
    raise errors.ProviderNotFound(name=reference)


def _identity(tree: ReshapeTree, by_name: Mapping[str, str], child: ChildProvider, path: str) -> str | None:
    """Return the uuid of an existing child; null for a new one.

    :param by_name: the uuids of the tree's providers by their names.
    """
    named = by_name.get(child.name)
    if child.uuid is None:
        return named
    if named is not None and named != child.uuid:
        raise errors.InvalidRequest(path=f"{path}.name", reason=f"{child.name} is the name of provider {named}")
    present = tree.providers.get(child.uuid)
    if present is not None and present.name != child.name:
        raise errors.InvalidRequest(path=f"{path}.uuid", reason=f"this is the provider {present.name}")
    return None if present is None else present.uuid


def _refuse_doubles(described: Sequence[ChildProvider]) -> None:
    seen: set[tuple[str, str]] = set()
    for position, child in enumerate(described):
        for field, value in (("uuid", child.uuid), ("name", child.name)):
            if value is not None and (field, value) in seen:
                raise errors.InvalidRequest(path=f"$.providers[{position}].{field}", reason="described twice")
            seen.add((field, value or ""))


def _refuse_loops(children: Sequence[NewChild], tree: ReshapeTree, positions: Mapping[str, int]) -> None:
    parents = {child.uuid: child.parent_uuid for child in children}
    for child in children:
        above, seen = child.parent_uuid, {child.uuid}
        while above not in tree.providers:
            if above in seen:
                raise errors.InvalidRequest(
                    path=f"$.providers[{positions[child.uuid]}].parent",
                    reason=f"{child.described.name} would be its own ancestor",
                )
            seen.add(above)
            above = parents[above]
