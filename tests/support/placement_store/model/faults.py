"""Why a write may not be."""

from collections.abc import Iterable, Sequence

from moorage import errors

#: Of these the data are words for a reader: who compares, compares what it is.
_WORDS = (errors.InvalidState, errors.InvalidRequest, errors.InvalidInventory, errors.ImpossibleDeal)


class Refused(Exception):
    """The write may not be, and each of ``faults`` says rightly why."""

    def __init__(self, faults: Sequence[errors.MoorageError]) -> None:
        super().__init__(*faults)
        self.faults = faults

    def covers(self, fault: errors.MoorageError) -> bool:
        """Tell whether this is one of the faults, by its type and all that it says, generations found included."""
        return any(_gist(fault) == _gist(expected) for expected in self.faults)


def _gist(fault: errors.MoorageError) -> tuple[object, ...]:
    if isinstance(fault, errors.CapacityExceeded):
        pairs = {(refusal["provider_uuid"], refusal["resource_class"]) for refusal in fault.refusals}
        return type(fault), frozenset(pairs)
    if isinstance(fault, errors.CannotCarryOver):
        return type(fault), frozenset(tuple(sorted(one.items())) for one in fault.amounts)
    if isinstance(fault, errors.GroupRuleRefused):
        return type(fault), fault.group_uuid
    if isinstance(fault, _WORDS):
        return (type(fault),)
    return type(fault), frozenset((name, str(value)) for name, value in fault.data.items())


def refuse(faults: Iterable[errors.MoorageError]) -> None:
    """Refuse if there are any faults."""
    if found := list(faults):
        raise Refused(found)
