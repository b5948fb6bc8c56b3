"""A host's tree and a request as one puzzle: what is to be chosen, and which providers each choice has."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moorage.model import UNSUFFIXED
from placement_store.candidates.eligibility import Ancestry, has_room, may_take_part, room, serves_group
from placement_store.candidates.masks import Mask, mask_of
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import CandidateProvider, HostTree
from placement_store.candidates.variables import SearchRequest, Variable


@dataclass(frozen=True, slots=True)
class Problem:
    """All that stays the same while choices are made. Providers, classes and choices go by their numbers."""

    #: In the order in which they are tried.
    providers: Sequence[CandidateProvider]
    classes: Sequence[str]
    choices: Sequence[Variable]
    #: Per choice, the providers that may serve it as long as nothing else is chosen.
    domains: tuple[Mask, ...]
    #: Per provider and class, how much one consumer may have of it.
    room: tuple[tuple[int, ...], ...]
    #: Per choice, those that ask for the same of the same providers, itself included: interchangeable.
    twins: Sequence[Mask]
    #: Per subtree, its groups; and which choice is its top.
    groups_of_subtree: Sequence[Mask]
    top_of_subtree: Sequence[int]
    #: Per provider, itself and all that stand below it.
    below: Sequence[Mask]
    #: Per provider, the nearest of the others that stands above it; -1 where there is none.
    parents: Sequence[int]
    #: Per provider, which sets of traits that the unsuffixed group asks for it has one of; and all of these sets.
    covers: Sequence[Mask]
    to_cover: Mask
    #: Checked wherever the work on one position grows with groups and providers.
    budget: SearchBudget


class _Kind(NamedTuple):
    """All that a request sees of a provider, its place in the tree aside; providers of one kind are equal to it."""

    serves: Mask
    room: tuple[int, ...]
    covers: Mask


def problem_of(tree: HostTree, asked: SearchRequest, seed: int | None, budget: SearchBudget) -> Problem:
    """Return the puzzle that a request poses on a tree.

    :param seed: changes the order in which providers that are equal are tried; null keeps the order of the tree.
    :param budget: pays for the puzzle itself as well: each provider is compared with each choice.
    :raises SearchBoundReached: it is used up.
    """
    ancestry = Ancestry.of(tree)
    found = [(provider, _kind_of(provider, asked, ancestry, budget)) for provider in (*tree.providers, *tree.sharing)]
    ordered = found if seed is None else _spread(found, seed)
    providers, kinds = [provider for provider, _ in ordered], [kind for _, kind in ordered]
    groups_of_subtree = [
        mask_of(number for number, choice in enumerate(asked.choices) if subtree in choice.subtrees)
        for subtree in range(len(asked.subtrees))
    ]
    domains = _domains(asked, kinds, groups_of_subtree)
    parents = _parents(providers, tree)
    return Problem(
        providers=providers,
        classes=asked.classes,
        choices=asked.choices,
        domains=tuple(domains),
        room=tuple(kind.room for kind in kinds),
        twins=_twins(asked.choices, domains),
        groups_of_subtree=groups_of_subtree,
        top_of_subtree=[number for number, choice in enumerate(asked.choices) if choice.top_of is not None],
        below=_below(parents),
        parents=parents,
        covers=[kind.covers for kind in kinds],
        to_cover=mask_of(range(len(asked.to_cover))),
        budget=budget,
    )


# --- Providers ------------------------------------------------------------------------------------------------------


def _kind_of(provider: CandidateProvider, asked: SearchRequest, ancestry: Ancestry, budget: SearchBudget) -> _Kind:
    budget.check()
    takes_part = may_take_part(provider, asked.unsuffixed, ancestry)

    def serves(choice: Variable) -> bool:
        if choice.suffix is None:
            return False
        if choice.suffix == UNSUFFIXED:
            class_number, amount = choice.demands[0]
            return takes_part and has_room(provider, asked.classes[class_number], amount)
        return serves_group(provider, asked.groups[choice.suffix], ancestry)

    rows = [provider.inventories.get(name) for name in asked.classes]
    return _Kind(
        serves=mask_of(number for number, choice in enumerate(asked.choices) if serves(choice)),
        room=tuple(0 if row is None else room(row) for row in rows),
        covers=mask_of(n for n, traits in enumerate(asked.to_cover) if not traits.isdisjoint(provider.traits)),
    )


def _spread(found: Sequence[tuple[CandidateProvider, _Kind]], seed: int) -> list[tuple[CandidateProvider, _Kind]]:
    """Return the providers so that those of one kind follow each other, in an order that the seed decides."""
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


# --- Choices --------------------------------------------------------------------------------------------------------


def _domains(asked: SearchRequest, kinds: Sequence[_Kind], groups_of_subtree: Sequence[Mask]) -> list[Mask]:
    """Return the providers that each choice has; a subtree's top may be any that serves one of its groups."""
    wanted = [
        1 << number if choice.top_of is None else groups_of_subtree[choice.top_of]
        for number, choice in enumerate(asked.choices)
    ]
    return [mask_of(place for place, kind in enumerate(kinds) if kind.serves & choices) for choices in wanted]


def _twins(choices: Sequence[Variable], domains: Sequence[Mask]) -> list[Mask]:
    alike: dict[object, Mask] = {}
    sorts = [
        (choice.suffix == UNSUFFIXED, choice.demands, choice.apart, choice.subtrees, choice.top_of, domain)
        for choice, domain in zip(choices, domains, strict=True)
    ]
    for number, sort in enumerate(sorts):
        alike[sort] = alike.get(sort, 0) | 1 << number
    return [alike[sort] for sort in sorts]
