"""The variables of a request: a candidate assigns a provider to each of them; no provider is read here yet."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest

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

    It is a suffixed group, one class of the unsuffixed group, or the root of a subtree: that one of the providers of
    its groups which stands above all of them.
    """

    #: The group it belongs to; null for a subtree root.
    suffix: str | None
    #: Pairs of (number of the class, amount).
    demands: tuple[tuple[int, int], ...] = ()
    #: The numbers of the sets, as a mask, in which no two variables may have the same provider.
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
        # A subtree of one group constrains nothing, nor does one that repeats another.
        named = (frozenset(suffixes) for suffixes in request.same_subtree)
        self.subtrees = list(dict.fromkeys(suffixes for suffixes in named if len(suffixes) > 1))
        #: The sets of traits of which the providers of the unsuffixed group must have at least one each.
        self.to_cover = [
            *(frozenset((trait,)) for trait in self.unsuffixed.required),
            *(frozenset(traits) for traits in self.unsuffixed.any_of),
        ]
        # Isolating all groups implies every `apart` of some of them.
        isolated = [self.groups.keys() - {UNSUFFIXED}] if request.group_policy == "isolate" else []
        self._apart = isolated or [set(suffixes) for suffixes in request.apart]
        self.variables: Sequence[Variable] = list(self._variables())

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
