"""Reasons to refuse a write."""

from collections.abc import Iterable, Sequence

from moorage import errors

#: The data of these errors are texts for a reader, so only their types are compared.
_WORDS = (errors.InvalidState, errors.InvalidRequest, errors.InvalidInventory, errors.ImpossibleDeal)


class Refused(Exception):
    """A write is refused; each of ``faults`` is a correct reason."""

    def __init__(self, faults: Sequence[errors.MoorageError]) -> None:
        super().__init__(*faults)
        self.faults = faults

    def covers(self, fault: errors.MoorageError) -> bool:
        """Return whether this is one of the errors, by its type and all its data, including generations found."""
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
    """Refuse if there are any errors."""
    if found := list(faults):
        raise Refused(found)
