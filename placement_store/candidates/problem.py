"""Compile a host's tree and a request into one constraint problem: variables, and a domain of providers for each."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest
from placement_store.candidates.eligibility import Ancestry, has_room, room, serves_group, serves_part
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import CandidateProvider, HostTree
from placement_store.providers.rows import InventoryRow

#: A set of small numbers: number n is in it if bit n is set.
Mask = int


def mask_of(numbers: Iterable[int]) -> Mask:
    """Return the set of these numbers."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def members(mask: Mask) -> Iterator[int]:
    """Yield the numbers of a set, the smallest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


_NOTHING = ResourceGroup()


@dataclass(frozen=True, slots=True)
class Variable:
    """A part of a request that one provider is assigned to.

    It is a suffixed group, one class of the unsuffixed group, or the root of a subtree. The root of a subtree is the
    provider of one of its groups, and the providers of all its groups are at or below it.
    """

    #: The group it belongs to; null for a subtree root.
    suffix: str | None
    #: Pairs of (number of the class, amount).
    demands: tuple[tuple[int, int], ...] = ()
    #: The mask of the sets that it is in; no two variables of one set may have the same provider.
    apart: Mask = 0
    #: For a suffixed group, the numbers of the subtrees that name it.
    subtrees: tuple[int, ...] = ()
    #: For a subtree root, the number of its subtree.
    root_of_subtree: int | None = None


class SearchRequest:
    """A request as variables, with its classes and subtrees by number.

    :param request: a request that has passed :func:`~placement_store.candidates.check`.
    """

    def __init__(self, request: ResourceRequest) -> None:
        self.groups = request.groups
        self.unsuffixed = request.groups.get(UNSUFFIXED, _NOTHING)
        self.classes: Sequence[str] = list(dict.fromkeys(n for group in self.groups.values() for n in group.resources))
        # A subtree of one group is no constraint, and neither is one that repeats another.
        named = (frozenset(suffixes) for suffixes in request.same_subtree)
        self.subtrees = list(dict.fromkeys(suffixes for suffixes in named if len(suffixes) > 1))
        #: For each of these sets of traits, some provider of the unsuffixed group must have one of the traits.
        self.to_cover = [
            *(frozenset((trait,)) for trait in self.unsuffixed.required),
            *(frozenset(traits) for traits in self.unsuffixed.any_of),
        ]
        # If all groups are isolated from each other, `apart` adds nothing.
        isolated = [self.groups.keys() - {UNSUFFIXED}] if request.group_policy == "isolate" else []
        self._apart = isolated or [set(suffixes) for suffixes in request.apart]
        self.variables: Sequence[Variable] = list(self._variables())
        #: Per subtree, its groups; and the variable that is its root.
        self.groups_of_subtree = [
            mask_of(number for number, variable in enumerate(self.variables) if subtree in variable.subtrees)
            for subtree in range(len(self.subtrees))
        ]
        self.root_variables = [
            number for number, variable in enumerate(self.variables) if variable.root_of_subtree is not None
        ]
        #: Whether each provider of a solution gives some amount; false if a group has only traits.
        self.demands_amounts = all(variable.demands for variable in self.variables if variable.suffix is not None)

    def _variables(self) -> Iterator[Variable]:
        numbers = {name: number for number, name in enumerate(self.classes)}
        for name, amount in self.unsuffixed.resources.items():
            yield Variable(UNSUFFIXED, ((numbers[name], amount),))
        for suffix, group in self.groups.items():
            if suffix != UNSUFFIXED:
                demands = tuple(sorted((numbers[name], amount) for name, amount in group.resources.items()))
                subtrees = tuple(n for n, suffixes in enumerate(self.subtrees) if suffix in suffixes)
                apart = mask_of(n for n, suffixes in enumerate(self._apart) if suffix in suffixes)
                yield Variable(suffix, demands, apart, subtrees)
        for number in range(len(self.subtrees)):
            yield Variable(None, root_of_subtree=number)


@dataclass(frozen=True, slots=True)
class Problem:
    """The part of a search that never changes. Providers, classes and variables are referred to by their numbers."""

    #: In the order in which they are tried.
    providers: Sequence[CandidateProvider]
    classes: Sequence[str]
    variables: Sequence[Variable]
    #: Per variable, the providers that can serve it while no other variable is assigned.
    domains: tuple[Mask, ...]
    #: Per provider and class, how much one consumer may be allocated.
    room: tuple[tuple[int, ...], ...]
    #: Whether solutions with the same amounts count as one, even if they assign the groups differently.
    folds: bool
    #: Per variable, all with the same demands, sets, subtrees and domain, itself included; only if ``folds``.
    interchangeable: Sequence[Mask]
    #: Per subtree, its groups; and the variable that is its root.
    groups_of_subtree: Sequence[Mask]
    root_variables: Sequence[int]
    #: Per provider, itself and all its descendants.
    below: Sequence[Mask]
    #: Per provider, its nearest ancestor among the others; -1 if there is none.
    parents: Sequence[int]
    #: Per provider, the trait sets of the unsuffixed group of which it has a trait; and all of these sets.
    covers: Sequence[Mask]
    to_cover: Mask
    #: Checked wherever the work on one state grows with groups and providers.
    budget: SearchBudget


class _Kind(NamedTuple):
    """The properties of a provider that matter to a request, without its place in the tree."""

    serves: Mask
    room: tuple[int, ...]
    covers: Mask


def compile_problem(
    tree: HostTree, request: SearchRequest, seed: int | None, budget: SearchBudget, *, folds: bool = True
) -> Problem:
    """Compile a request on a tree into a constraint problem.

    :param seed: changes the order in which providers that are equal are tried; null keeps the order of the tree.
    :param budget: also bounds this function, which compares each provider with each variable.
    :raises SearchBoundReached: the budget is used up.
    """
    found = list(_serving(tree, request, budget))
    ordered = found if seed is None else _sorted_by_kind(found, seed)
    providers, kinds = [provider for provider, _ in ordered], [kind for _, kind in ordered]
    domains = _domains(request, kinds)
    # Only subtrees depend on the places of the providers.
    parents = _parents(providers, tree) if request.subtrees else [-1] * len(providers)
    return Problem(
        providers=providers,
        classes=request.classes,
        variables=request.variables,
        domains=tuple(domains),
        room=tuple(kind.room for kind in kinds),
        folds=folds,
        interchangeable=_interchangeable(request.variables, domains) if folds else [0] * len(domains),
        groups_of_subtree=request.groups_of_subtree,
        root_variables=request.root_variables,
        below=_below(parents),
        parents=parents,
        covers=[kind.covers for kind in kinds],
        to_cover=mask_of(range(len(request.to_cover))),
        budget=budget,
    )


# --- Providers ------------------------------------------------------------------------------------------------------


def _serving(tree: HostTree, request: SearchRequest, budget: SearchBudget) -> Iterator[tuple[CandidateProvider, _Kind]]:
    """Yield the providers that can serve some variable: a host may have hundreds of devices, most of them alike."""
    ancestry = Ancestry(tree)
    kinds: dict[object, _Kind] = {}
    for provider in (*tree.providers, *tree.sharing):
        if request.demands_amounts and provider.inventories.keys().isdisjoint(request.classes):
            continue
        budget.check()
        rows = tuple(provider.inventories.get(name) for name in request.classes)
        alike = rows, provider.root_uuid, provider.traits, provider.aggregates
        if (kind := kinds.get(alike)) is None:
            kind = kinds[alike] = _kind_of(provider, rows, request, ancestry)
        if kind.serves:
            yield provider, kind


def _kind_of(
    provider: CandidateProvider, rows: Iterable[InventoryRow | None], request: SearchRequest, ancestry: Ancestry
) -> _Kind:
    serves_unsuffixed = serves_part(provider, request.unsuffixed, ancestry)

    def serves(variable: Variable) -> bool:
        if variable.suffix is None:
            return False
        if variable.suffix == UNSUFFIXED:
            class_number, amount = variable.demands[0]
            return serves_unsuffixed and has_room(provider, request.classes[class_number], amount)
        return serves_group(provider, request.groups[variable.suffix], ancestry)

    return _Kind(
        serves=mask_of(number for number, variable in enumerate(request.variables) if serves(variable)),
        room=tuple(0 if row is None else room(row) for row in rows),
        covers=mask_of(n for n, traits in enumerate(request.to_cover) if not traits.isdisjoint(provider.traits)),
    )


def _sorted_by_kind(
    found: Sequence[tuple[CandidateProvider, _Kind]], seed: int
) -> list[tuple[CandidateProvider, _Kind]]:
    """Sort the providers by kind, and within a kind in an order that the seed decides."""
    first: dict[_Kind, int] = {}
    for number, (_, kind) in enumerate(found):
        first.setdefault(kind, number)
    return sorted(found, key=lambda one: (first[one[1]], zlib.crc32(f"{seed}/{one[0].uuid}".encode())))


def _parents(providers: Sequence[CandidateProvider], tree: HostTree) -> list[int]:
    numbers = {provider.uuid: number for number, provider in enumerate(providers)}
    others = (*tree.providers, *tree.sharing, *tree.above_sharing)
    unnumbered = {provider.uuid: provider.parent_uuid for provider in others}

    def number_above(uuid: str | None) -> int:
        while uuid is not None and uuid not in numbers:
            uuid = unnumbered.get(uuid)
        return -1 if uuid is None else numbers[uuid]

    return [number_above(provider.parent_uuid) for provider in providers]


def _below(parents: Sequence[int]) -> list[Mask]:
    below = [1 << number for number in range(len(parents))]
    for number, parent in enumerate(parents):
        above = parent
        while above >= 0:
            below[above] |= 1 << number
            above = parents[above]
    return below


# --- Variables ------------------------------------------------------------------------------------------------------


def _domains(request: SearchRequest, kinds: Sequence[_Kind]) -> list[Mask]:
    """Return the domain of each variable; a subtree's root may be any provider that serves one of its groups."""
    domains = [0] * len(request.variables)
    for place, kind in enumerate(kinds):
        for number in members(kind.serves):
            domains[number] |= 1 << place
    for number, groups in zip(request.root_variables, request.groups_of_subtree, strict=True):
        for group in members(groups):
            domains[number] |= domains[group]
    return domains


def _interchangeable(variables: Sequence[Variable], domains: Sequence[Mask]) -> list[Mask]:
    alike: dict[object, Mask] = {}
    keys = [
        (one.suffix == UNSUFFIXED, one.demands, one.apart, one.subtrees, one.root_of_subtree, domain)
        for one, domain in zip(variables, domains, strict=True)
    ]
    for number, key in enumerate(keys):
        alike[key] = alike.get(key, 0) | 1 << number
    return [alike[key] for key in keys]
