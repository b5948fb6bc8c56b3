"""Hypothesis strategies for small trees, and for requests that such trees can serve now and then."""

from random import Random
from typing import Any

from hypothesis import strategies as st

from moorage import errors
from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree, check, parents_first, sharing_with
from placement_store.candidates.tree import SHARES
from placement_store.providers.rows import InventoryRow

ANY = 2**31 - 1
SUFFIXES = ("", "_1", "_2", "_3")


def row(total: int, used: int = 0, **more: Any) -> InventoryRow:
    given = {"reserved": 0, "min_unit": 1, "max_unit": ANY, "step_size": 1, "allocation_ratio": 1.0} | more
    return InventoryRow(total=total, used=used, **given)


#: Inventories of one class; none is large, so that groups compete for them.
ROWS = (
    *(row(1), row(2), row(3), row(4), row(4), row(6)),
    *(row(4, 2), row(3, 3), row(2, 4)),
    *(row(4, reserved=1), row(3, allocation_ratio=1.5), row(6, max_unit=2), row(6, max_unit=3)),
    *(row(4, min_unit=2), row(6, step_size=2)),
)
INVENTORIES = st.sampled_from(
    [("VCPU", "VGPU", "DISK_GB"), ("VCPU", "VGPU", "DISK_GB"), ("VCPU", "VGPU"), ("VGPU",), ("VGPU",), ("DISK_GB",), ()]
).flatmap(lambda names: st.fixed_dictionaries({name: st.sampled_from(ROWS) for name in names}))
NONE: frozenset[str] = frozenset()
TRAITS = st.sampled_from(
    [NONE, NONE, *map(frozenset, (["CUSTOM_A"], ["CUSTOM_B"], ["CUSTOM_A", "CUSTOM_B"], ["CUSTOM_C"]))]
)
AGGREGATES = st.sampled_from([NONE, NONE, *map(frozenset, (["agg-1"], ["agg-1"], ["agg-2"], ["agg-1", "agg-2"]))])


@st.composite
def trees(draw: Any, root: str, most: int, *, sharing: frozenset[str]) -> list[CandidateProvider]:
    """Return all providers of one tree, parents first; each may have the traits ``sharing``, at any place in it."""
    providers: list[CandidateProvider] = []
    for number in range(draw(st.integers(1, most))):
        parent = None if number == 0 else providers[draw(st.integers(0, number - 1))].uuid
        inventories, traits, aggregates, shares = draw(st.tuples(INVENTORIES, TRAITS, AGGREGATES, st.booleans()))
        providers.append(
            CandidateProvider(
                uuid=f"{root}{number or ''}",
                root_uuid=root,
                parent_uuid=parent,
                inventories=inventories,
                traits=traits | sharing if shares else traits,
                aggregates=aggregates,
            )
        )
    return parents_first(providers)


@st.composite
def host_trees(draw: Any) -> HostTree:
    providers = draw(trees("host", 5, sharing=NONE))
    elsewhere = draw(st.just([]) | trees("pool", 3, sharing=frozenset([SHARES])))
    sharing = sharing_with(providers, elsewhere)
    above = [provider for provider in elsewhere if sharing and provider not in sharing]
    return HostTree(providers, sharing, above)


RESOURCES = st.sampled_from(
    [
        *({"VGPU": 1}, {"VGPU": 1}, {"VGPU": 2}, {"VCPU": 1}, {"VCPU": 2}, {"DISK_GB": 1}),
        *({"VCPU": 1, "VGPU": 1}, {"VCPU": 2, "DISK_GB": 2}, {"VCPU": 1, "VGPU": 2, "DISK_GB": 1}, {"VCPU": 3}),
    ]
)
#: Most groups have no rules, otherwise hardly any request could be served.
RULES: list[dict[str, Any]] = [
    *[{}] * 24,
    *({"required": ("CUSTOM_A",)}, {"required": ("CUSTOM_A", "CUSTOM_B")}, {"forbidden": ("CUSTOM_A",)}),
    {"any_of": (("CUSTOM_A", "CUSTOM_C"),)},
    {"any_of": (("CUSTOM_A", "CUSTOM_C"), ("CUSTOM_B", "CUSTOM_C"))},
    {"any_of": (("CUSTOM_A", "CUSTOM_B"),), "forbidden": ("CUSTOM_B",)},
    *({"member_of": (("agg-1",),)}, {"member_of": (("agg-1", "agg-2"),)}, {"member_of": (("agg-1",), ("agg-2",))}),
    *({"not_member_of": ("agg-1",)}, {"member_of": (("agg-1",),), "not_member_of": ("agg-2",)}),
    *({"in_tree": "host"}, {"in_tree": "host1"}, {"in_tree": "pool"}, {"in_tree": "nowhere"}),
]
#: Several providers serve this group together, so more can go wrong.
RULES_OF_THE_UNSUFFIXED = RULES[18:]
ROOT_RULES: list[dict[str, Any]] = [
    *[{}] * 12,
    *({"root_required": ("CUSTOM_A",)}, {"root_forbidden": ("CUSTOM_A",)}),
    *({"root_member_of": (("agg-1", "agg-2"),)}, {"root_not_member_of": ("agg-1",)}),
    {"root_member_of": (("agg-1",), ("agg-2",))},
]


@st.composite
def requests(draw: Any) -> ResourceRequest:
    """Return a request that passes :func:`check`; several groups may be equal, and some may have no resources."""
    suffixes = draw(st.sampled_from([("",), ("", "_1"), ("_1", "_2"), ("", "_1", "_2"), ("_1", "_2", "_3"), SUFFIXES]))
    same_subtree = draw(
        st.sampled_from([(), (), (("_1", "_2"),), (("_1", "_2", "_3"),), (("_1",), ("_2", "_3")), (("_1", "_2"),) * 2])
    )
    same_subtree = tuple(named for named in same_subtree if set(named) <= set(suffixes))
    apart = draw(st.sampled_from([(), (), (("_1", "_2"),), (("_2", "_3"),), (("_1", "_2"), ("_2", "_3")), (("_1",),)]))
    apart = tuple(named for named in apart if set(named) <= set(suffixes))
    named = {suffix for part in same_subtree for suffix in part}
    pattern = draw(st.tuples(RESOURCES, st.sampled_from(RULES)))
    groups = {}
    for suffix in suffixes:
        kind = draw(st.sampled_from(["pattern", "pattern", "other", "resourceless"]))
        resources, rules = pattern if kind == "pattern" else draw(st.tuples(RESOURCES, st.sampled_from(RULES)))
        if suffix == "":
            rules = draw(st.sampled_from(RULES_OF_THE_UNSUFFIXED))
        groups[suffix] = ResourceGroup(
            resources={} if kind == "resourceless" and suffix in named else resources, **rules
        )
    return ResourceRequest(
        groups=groups,
        group_policy=draw(st.sampled_from(["none", "isolate"])),
        same_subtree=same_subtree,
        apart=apart,
        **draw(st.sampled_from(ROOT_RULES)),
    )


def is_valid(request: ResourceRequest) -> bool:
    try:
        check(request)
    except errors.InvalidRequest:
        return False
    return True


# --- Where there is hardly room ---------------------------------------------------------------------------------------


def tight_tree(random: Random) -> HostTree:
    """Return a tree of devices with little room each, some below others, in which a search often meets dead ends."""
    providers = [CandidateProvider("host", "host", None, {})]
    for number in range(random.choice([3, 4])):
        sizes = {"VGPU": (1.0, 5), "VCPU": (0.6, 3), "DISK_GB": (0.4, 3)}
        inventories = {
            name: row(random.randint(1, most)) for name, (often, most) in sizes.items() if random.random() < often
        }
        parent = random.choice(["host", *(provider.uuid for provider in providers)])
        traits = frozenset(random.sample(["CUSTOM_A", "CUSTOM_B"], random.choice([0, 1, 1])))
        providers.append(CandidateProvider(f"device{number}", "host", parent, inventories, traits))
    return HostTree(parents_first(providers))


def tight_request(random: Random) -> ResourceRequest:
    """Return a request of several small groups of different sizes for such a tree."""
    groups = {}
    if random.random() < 0.7:
        groups[""] = ResourceGroup(
            resources=dict(random.sample([("VGPU", 2), ("VCPU", 1), ("DISK_GB", 1)], random.choice([2, 3]))),
            required=tuple(random.sample(["CUSTOM_A", "CUSTOM_B"], random.choice([0, 1, 2]))),
        )
    for number in range(random.choice([3, 4])):
        groups[f"_{number}"] = ResourceGroup(
            resources={"VGPU": random.choice([1, 2, 2, 3])} | ({"VCPU": 1} if random.random() < 0.3 else {}),
            forbidden=("CUSTOM_A",) if random.random() < 0.3 else (),
        )
    return ResourceRequest(
        groups=groups,
        group_policy=random.choice(["none", "none", "isolate"]),
        same_subtree=random.choice([(), (("_0", "_1"),), (("_0", "_1"), ("_1", "_2"))]),
        apart=random.choice([(), (), (("_0", "_1"),), (("_0", "_1"), ("_1", "_2"))]),
    )


def tight_cases() -> st.SearchStrategy[tuple[HostTree, ResourceRequest]]:
    """Return such a tree with such a request, from one number: many cases in little time, to find rare ones."""
    return st.integers(0, 2**32).map(Random).map(lambda random: (tight_tree(random), tight_request(random)))
