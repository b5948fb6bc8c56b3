"""An executable model of the placement store: dictionaries, one write at a time, and no regard for speed.

The model is given the very messages that the store is given, and returns the answer, or names every fault that would be
a right reason to refuse: which of several the store tells first is its own affair. Two use it: the state machine that
compares the store with it, and :mod:`support.placement_store.in_memory`, which serves it to those who need a store.
"""

from support.placement_store.model import groups, instructions, names, providers, reports, reshapes  # noqa: F401 - they teach `apply`
from support.placement_store.model.basis import Held, Model, Pair, apply, described
from support.placement_store.model.consumers import Claim
from support.placement_store.model.faults import Refused
from support.placement_store.model.groups import GROUPS
from support.placement_store.model.moves import BeginMove

__all__ = ["GROUPS", "BeginMove", "Claim", "Held", "Model", "Pair", "Refused", "apply", "described"]
