"""An executable model of the placement store: dictionaries, one write at a time, and no regard for speed.

The model is given the same messages as the store. It returns the answer, or every error that would be a correct reason
to refuse: the store may return any of them. The model has two users: the state machine that compares the store with it,
and :mod:`support.placement_store.in_memory`, which serves it to tests that need a store.
"""

from support.placement_store.model import groups, instructions, names, providers, reports, reshapes  # noqa: F401 - they register with `apply`
from support.placement_store.model.basis import Held, Model, Pair, apply, described
from support.placement_store.model.consumers import Claim
from support.placement_store.model.faults import Refused
from support.placement_store.model.groups import GROUPS
from support.placement_store.model.moves import BeginMove

__all__ = ["GROUPS", "BeginMove", "Claim", "Held", "Model", "Pair", "Refused", "apply", "described"]
