"""Hosts that are trees, pools that share with them, and requests for their groups: for the scheduler's tests.

The sets of names are small, so that hosts often match a request, and often just fail to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from moorage import errors
from moorage.ids import derived
from moorage.model import RequestSpec, ResourceGroup
from moorage.plugin import HostInventory
from moorage.testing.builders import inventory
from placement_store import candidates
from placement_store.candidates.tree import SHARES
from scheduler.view.host_cache import HostCache
from scheduler.view.provider_trees import FetchedProvider
from support.scheduler.builders import host_cache, host_row, spec

TRAITS = ["CUSTOM_FAST", "CUSTOM_RED", "CUSTOM_OLD"]
AGGREGATES = [derived("tests", "aggregate", number) for number in range(3)]
CLASSES = ["VCPU", "MEMORY_MB", "DISK_GB", "VGPU"]

#: The ids of pools come after those of all hosts' providers.
_FIRST_POOL = 10_000
#: The ids of a host's providers start at the host's number times this.
_IDS_OF_A_HOST = 100


def provider_uuid(id_: int) -> str:
    """Return the uuid of the provider with an id: that of a compute node is the host's."""
    if id_ < _FIRST_POOL and id_ % _IDS_OF_A_HOST == 0:
        return host_row(id_ // _IDS_OF_A_HOST).compute_node_uuid
    return derived("tests", "provider", id_)


def node(host: int, seq: int = 0, **described: Any) -> FetchedProvider:
    """The compute node of a host."""
    return _provider(host * _IDS_OF_A_HOST, host * _IDS_OF_A_HOST, None, seq, **described)


def child(host: int, number: int, parent: int = 0, seq: int = 0, **described: Any) -> FetchedProvider:
    """A provider under a host's compute node, or under another child of it."""
    root_id = host * _IDS_OF_A_HOST
    return _provider(root_id + number, root_id, root_id + parent, seq, **described)


def host_with(host: int, devices: Sequence[Mapping[str, Any]], **described: Any) -> list[FetchedProvider]:
    """The compute node of a host, and devices below it, which are its children 1, 2, ..."""
    return [node(host, **described), *(child(host, number, **device) for number, device in enumerate(devices, 1))]


def pool(number: int, aggregates: Sequence[str], seq: int = 0, **described: Any) -> FetchedProvider:
    """A provider that shares its inventory with every tree that has a provider in one of its aggregates."""
    traits = [SHARES, *described.pop("traits", ())]
    return _provider(
        _FIRST_POOL + number, _FIRST_POOL + number, None, seq, aggregates=aggregates, traits=traits, **described
    )


def _provider(
    id_: int,
    root_id: int,
    parent_id: int | None,
    seq: int,
    *,
    traits: Sequence[str] = (),
    aggregates: Sequence[str] = (),
    held: Mapping[str, HostInventory] | None = None,
    **totals: int | HostInventory,
) -> FetchedProvider:
    inventories = {name: inventory(each) if isinstance(each, int) else each for name, each in totals.items()}
    return FetchedProvider(
        id=id_,
        uuid=provider_uuid(id_),
        seq=seq,
        root_id=root_id,
        parent_id=parent_id,
        inventories={**inventories, **(held or {})},
        traits=frozenset(traits),
        aggregates=frozenset(aggregates),
    )


def host_cache_of(*providers: FetchedProvider, hosts: int = 1) -> HostCache:
    """Return the host cache of hosts 0, 1, ... and of these providers."""
    return host_cache([host_row(number) for number in range(hosts)], providers)


def groups(**asked: ResourceGroup | Mapping[str, int]) -> dict[str, ResourceGroup]:
    """Resource groups by suffix, given whole or only as amounts; ``unsuffixed`` is the group without a suffix."""
    return {
        "" if suffix == "unsuffixed" else suffix: one
        if isinstance(one, ResourceGroup)
        else ResourceGroup(resources=dict(one))
        for suffix, one in asked.items()
    }


# --- Strategies -----------------------------------------------------------------------------------------------------

inventories = st.builds(
    inventory,
    total=st.integers(2, 8),
    used=st.sampled_from([0, 0, 1, 2, 3, 4]),
    reserved=st.integers(0, 1),
    min_unit=st.sampled_from([1, 1, 1, 2]),
    max_unit=st.integers(2, 8),
    step_size=st.sampled_from([1, 1, 1, 2]),
    allocation_ratio=st.sampled_from([0.5, 1.0, 1.5]),
)
#: Nearly every compute node has some of these.
_basics = st.fixed_dictionaries(dict.fromkeys(("VCPU", "MEMORY_MB", "DISK_GB"), inventories))
_described: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "held": st.dictionaries(st.sampled_from(CLASSES), inventories, max_size=3),
        "traits": st.lists(st.sampled_from(TRAITS), max_size=2),
        "aggregates": st.lists(st.sampled_from(AGGREGATES), max_size=1),
    }
)


@st.composite
def providers_of_hosts(draw: st.DrawFn, hosts: int) -> list[FetchedProvider]:
    """Trees of up to four providers for each host, and up to two pools; some hosts have no providers."""
    found = []
    for number in range(hosts):
        descriptions = draw(st.lists(_described, max_size=4))
        for position, described in enumerate(descriptions):
            if position == 0:
                described["held"] = {**draw(_basics | _basics | st.just({})), **described["held"]}
                found.append(node(number, **described))
            else:
                found.append(child(number, position, parent=draw(st.integers(0, position - 1)), **described))
    for number, described in enumerate(draw(st.lists(_described, max_size=2))):
        found.append(pool(number, **described))
    return found


def _now_and_then(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One of these in one request of six: each additional one leaves fewer hosts."""
    return st.integers(0, 5).flatmap(lambda number: st.just(()) if number else strategy.map(lambda one: (one,)))


_traits = _now_and_then(st.sampled_from(TRAITS))
_aggregates = st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=2).map(tuple)
_groups = st.builds(
    ResourceGroup,
    resources=st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 2), min_size=1, max_size=2),
    required=_traits,
    any_of=_now_and_then(st.lists(st.sampled_from(TRAITS), min_size=2, max_size=2).map(tuple)),
    forbidden=_traits,
    member_of=_now_and_then(_aggregates),
    not_member_of=_now_and_then(st.sampled_from(AGGREGATES)),
    in_tree=_now_and_then(st.sampled_from([0, 1, 100, _FIRST_POOL])).map(
        lambda ids: provider_uuid(*ids) if ids else None
    ),
)


@st.composite
def granular_requests(draw: st.DrawFn) -> RequestSpec:
    """Requests for a small server and up to two more groups; nearly always valid."""
    asked = draw(st.dictionaries(st.sampled_from(["", "a", "b"]), _groups, max_size=3))
    together = asked.keys() >= {"a", "b"} and draw(st.booleans())
    return spec(
        vcpus=draw(st.integers(1, 2)),
        memory_mb=draw(st.integers(1, 2)),
        root_gb=draw(st.integers(0, 1)),
        groups=asked,
        group_policy=draw(st.sampled_from(["none", "isolate"])),
        same_subtree=(("a", "b"),) if together else (),
        apart=(("a", "b"),) if asked.keys() >= {"a", "b"} and draw(st.booleans()) else (),
        root_required=draw(_traits),
        root_forbidden=draw(_traits),
        root_member_of=draw(_now_and_then(_aggregates)),
        root_not_member_of=draw(_now_and_then(st.sampled_from(AGGREGATES))),
    )


def is_valid(request: RequestSpec) -> bool:
    """Return whether the store would accept such a request at all."""
    try:
        candidates.check(request.resource_request)
    except errors.InvalidRequest:
        return False
    return True
