"""What must be chosen to serve a request, before anything is known of any provider."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moorage.model import UNSUFFIXED, ResourceGroup, ResourceRequest
from placement_store.candidates.masks import Mask, mask_of

_NOTHING = ResourceGroup()


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that a provider must be chosen for.

    It is a suffixed group, one class of the unsuffixed group, or the top of a subtree: that one of the providers of its
    groups which stands above all of them.
    """

    #: The group it belongs to; null for a top.
    suffix: str | None
    #: Pairs of (number of the class, amount).
    demands: tuple[tuple[int, int], ...] = ()
    #: The numbers of the sets, as a mask, in which no two choices may have the same provider.
    apart: Mask = 0
    #: Of a suffixed group, the numbers of the subtrees that it is named in.
    subtrees: tuple[int, ...] = ()
    #: Of a top, the number of its subtree.
    top_of: int | None = None


class SearchRequest:
    """A request as choices, with its classes and subtrees by number.

    :param request: one that has passed the check.
    """

    def __init__(self, request: ResourceRequest) -> None:
        self.groups = request.groups
        self.unsuffixed = request.groups.get(UNSUFFIXED, _NOTHING)
        self.classes: Sequence[str] = list(dict.fromkeys(n for group in self.groups.values() for n in group.resources))
        # A subtree of one group is any provider's own; to name the same groups twice says nothing more.
        named = (frozenset(suffixes) for suffixes in request.same_subtree)
        self.subtrees = list(dict.fromkeys(suffixes for suffixes in named if len(suffixes) > 1))
        #: The sets of traits of which the providers of the unsuffixed group must have at least one each.
        self.to_cover = [
            *(frozenset((trait,)) for trait in self.unsuffixed.required),
            *(frozenset(traits) for traits in self.unsuffixed.any_of),
        ]
        # To keep all groups from each other keeps some of them from each other as well.
        isolated = [self.groups.keys() - {UNSUFFIXED}] if request.group_policy == "isolate" else []
        self._apart = isolated or [set(suffixes) for suffixes in request.apart]
        self.choices: Sequence[Variable] = list(self._choices())

    def _choices(self) -> Iterator[Variable]:
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
            yield Variable(None, top_of=number)
