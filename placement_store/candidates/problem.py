"""Compile a host's tree and a request into one constraint problem: variables, and a domain of providers for each."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moorage.model import UNSUFFIXED
from placement_store.candidates.eligibility import Ancestry, has_room, room, serves_group, serves_part
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import CandidateProvider, HostTree
from placement_store.candidates.variables import Mask, SearchRequest, Variable, mask_of


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
    #: Per variable, those that demand the same amounts of the same providers, itself included.
    interchangeable: Sequence[Mask]
    #: Per subtree, its groups; and the variable that is its root.
    groups_of_subtree: Sequence[Mask]
    root_variables: Sequence[int]
    #: Per provider, itself and all its descendants.
    below: Sequence[Mask]
    #: Per provider, its nearest ancestor among the others; -1 where there is none.
    parents: Sequence[int]
    #: Per provider, the trait sets of the unsuffixed group of which it has a trait; and all of these sets.
    covers: Sequence[Mask]
    to_cover: Mask
    #: Checked wherever the work on one state grows with groups and providers.
    budget: SearchBudget


class _Kind(NamedTuple):
    """A provider as a request sees it, apart from its place in the tree; providers of one kind are equal to it."""

    serves: Mask
    room: tuple[int, ...]
    covers: Mask


def compile_problem(tree: HostTree, request: SearchRequest, seed: int | None, budget: SearchBudget) -> Problem:
    """Compile a request on a tree into a constraint problem.

    :param seed: changes the order in which providers that are equal are tried; null keeps the order of the tree.
    :param budget: pays for this as well: each provider is compared with each variable.
    :raises SearchBoundReached: the budget is used up.
    """
    ancestry = Ancestry.of(tree)
    found = [(provider, _kind_of(provider, request, ancestry, budget)) for provider in (*tree.providers, *tree.sharing)]
    ordered = found if seed is None else _sorted_by_kind(found, seed)
    providers, kinds = [provider for provider, _ in ordered], [kind for _, kind in ordered]
    groups_of_subtree = [
        mask_of(number for number, variable in enumerate(request.variables) if subtree in variable.subtrees)
        for subtree in range(len(request.subtrees))
    ]
    domains = _domains(request, kinds, groups_of_subtree)
    parents = _parents(providers, tree)
    return Problem(
        providers=providers,
        classes=request.classes,
        variables=request.variables,
        domains=tuple(domains),
        room=tuple(kind.room for kind in kinds),
        interchangeable=_interchangeable(request.variables, domains),
        groups_of_subtree=groups_of_subtree,
        root_variables=[
            number for number, variable in enumerate(request.variables) if variable.root_of_subtree is not None
        ],
        below=_below(parents),
        parents=parents,
        covers=[kind.covers for kind in kinds],
        to_cover=mask_of(range(len(request.to_cover))),
        budget=budget,
    )


# --- Providers ------------------------------------------------------------------------------------------------------


def _kind_of(provider: CandidateProvider, request: SearchRequest, ancestry: Ancestry, budget: SearchBudget) -> _Kind:
    budget.check()
    serves_unsuffixed = serves_part(provider, request.unsuffixed, ancestry)

    def serves(variable: Variable) -> bool:
        if variable.suffix is None:
            return False
        if variable.suffix == UNSUFFIXED:
            class_number, amount = variable.demands[0]
            return serves_unsuffixed and has_room(provider, request.classes[class_number], amount)
        return serves_group(provider, request.groups[variable.suffix], ancestry)

    rows = [provider.inventories.get(name) for name in request.classes]
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
    unnumbered = {provider.uuid: provider.parent_uuid for provider in tree.above_sharing}

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


def _domains(request: SearchRequest, kinds: Sequence[_Kind], groups_of_subtree: Sequence[Mask]) -> list[Mask]:
    """Return the domain of each variable; a subtree's root may be any provider that serves one of its groups."""
    wanted = [
        1 << number if variable.root_of_subtree is None else groups_of_subtree[variable.root_of_subtree]
        for number, variable in enumerate(request.variables)
    ]
    return [mask_of(place for place, kind in enumerate(kinds) if kind.serves & variables) for variables in wanted]


def _interchangeable(variables: Sequence[Variable], domains: Sequence[Mask]) -> list[Mask]:
    alike: dict[object, Mask] = {}
    keys = [
        (
            variable.suffix == UNSUFFIXED,
            variable.demands,
            variable.apart,
            variable.subtrees,
            variable.root_of_subtree,
            domain,
        )
        for variable, domain in zip(variables, domains, strict=True)
    ]
    for number, key in enumerate(keys):
        alike[key] = alike.get(key, 0) | 1 << number
    return [alike[key] for key in keys]
