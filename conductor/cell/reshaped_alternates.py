"""Translate the allocation requests of alternates whose hosts were reshaped since they were selected."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from conductor.cell import attached_groups
from conductor.engine.acknowledgements import AcknowledgingClient
from moorage import errors
from moorage.messages import ListAllocationCandidates, ListProviderTrees
from moorage.model import (
    UNSUFFIXED,
    AllocationRequest,
    RequestSpec,
    ResourceGroup,
    ResourceRequest,
    Resources,
    Selection,
)

#: The number of allocation candidates that are checked against the isolated groups. Arbitrary.
_MAX_CANDIDATES = 100


@dataclass(frozen=True, slots=True)
class _Moved:
    """Amounts whose inventories have moved away from a provider of the alternate; they must stay on one provider."""

    provider_uuid: str
    resources: Resources
    #: They belong to suffixed groups, which may have to be isolated.
    of_a_group: bool


def translated_alternate(
    placement: AcknowledgingClient, spec: RequestSpec, selection: Selection
) -> AllocationRequest | None:
    """Return the same amounts on the current providers of the tree; None if none has moved, or if they do not fit.

    As in a reshape, no amount is split, and traits are not checked again.

    :raises Unavailable: the placement role does not answer.
    """
    trees = placement.call(ListProviderTrees(uuids=(selection.compute_node_uuid,)))
    there = {(provider.uuid, name) for provider in trees for name in provider.inventories}
    claimed = selection.allocation_request
    gone = {
        (uuid, name)
        for uuid, part in claimed.allocations.items()
        for name in part.resources
        if uuid not in selection.shared_providers and (uuid, name) not in there
    }
    if not trees or not gone:
        return None
    moved = list(_moved(claimed, gone))
    alone = attached_groups.is_isolated(spec)
    kept = attached_groups.without_pairs(claimed, gone)
    taken = attached_groups.suffixed_providers(claimed) & kept.keys() if alone else set()
    for candidate in _candidates(placement, moved, selection.compute_node_uuid, alone):
        places = {number: candidate.mappings[f"_{number}"][0] for number in range(len(moved))}
        if not any(one.of_a_group and places[number] in taken for number, one in enumerate(moved)):
            return AllocationRequest(
                allocations=attached_groups.together(kept, candidate.allocations),
                mappings=_mappings(claimed, kept.keys(), moved, places),
            )
    return None


def _candidates(
    placement: AcknowledgingClient, moved: list[_Moved], root: str, alone: bool
) -> tuple[AllocationRequest, ...]:
    groups = {f"_{number}": ResourceGroup(resources=one.resources, in_tree=root) for number, one in enumerate(moved)}
    apart = tuple(f"_{number}" for number, one in enumerate(moved) if one.of_a_group)
    request = ResourceRequest(groups=groups, group_policy="none", apart=(apart,) if alone and len(apart) > 1 else ())
    try:
        asked = ListAllocationCandidates(request=request, limit=_MAX_CANDIDATES)
        return placement.call(asked).allocation_requests
    except (errors.CallerError, errors.PlacementRefused):
        return ()


def _moved(claimed: AllocationRequest, gone: set[attached_groups.InventoryKey]) -> Iterator[_Moved]:
    """Yield the moved amounts: in one item for a provider that serves only suffixed groups, else one for each class."""
    plain = set(claimed.mappings.get(UNSUFFIXED, ()))
    for uuid, part in sorted(claimed.allocations.items()):
        resources = {name: amount for name, amount in sorted(part.resources.items()) if (uuid, name) in gone}
        if uuid in plain or uuid not in attached_groups.suffixed_providers(claimed):
            yield from (_Moved(uuid, {name: amount}, of_a_group=False) for name, amount in resources.items())
        elif resources:
            yield _Moved(uuid, resources, of_a_group=True)


def _mappings(
    claimed: AllocationRequest, kept: Collection[str], moved: list[_Moved], places: Mapping[int, str]
) -> dict[str, tuple[str, ...]]:
    """Return the providers of each group; a provider whose amounts have moved is replaced by the current one."""
    now: dict[str, list[str]] = {uuid: [uuid] for uuid in claimed.allocations if uuid in kept}
    for number, one in enumerate(moved):
        now.setdefault(one.provider_uuid, []).append(places[number])
    return {
        suffix: tuple(dict.fromkeys(place for uuid in uuids for place in now.get(uuid, [uuid])))
        for suffix, uuids in claimed.mappings.items()
    }
