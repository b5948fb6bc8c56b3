"""What the placement store must answer, in plain Python: dictionaries, one write at a time, and no regard for speed.

The model is given the very messages that the store is given, and returns the answer, or names every fault that would be
a right reason to refuse: which of several the store tells first is its own affair.
"""

from store_model import groups, instructions, names, providers, reports, reshapes  # noqa: F401 - they teach `apply`
from store_model.basis import Held, Model, Pair, apply, described
from store_model.consumers import Claim
from store_model.faults import Refused
from store_model.groups import GROUPS
from store_model.moves import BeginMove

__all__ = ["GROUPS", "BeginMove", "Claim", "Held", "Model", "Pair", "Refused", "apply", "described"]
