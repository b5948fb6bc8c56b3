"""Amounts of resources in words, for whoever reads a record, a log or a finding."""

from collections.abc import Mapping

from moorage.model import Allocations

Amounts = Mapping[str, Mapping[str, int]]


def in_words(amounts: Amounts) -> str:
    """Return in words how much of what there is.

    :param amounts: by provider uuid and resource class.
    """
    return ", ".join(
        f"{amount} {name} of provider {uuid}"
        for uuid, resources in sorted(amounts.items())
        for name, amount in sorted(resources.items())
    )


def amounts_of(allocations: Allocations) -> Amounts:
    """Return the amounts of allocations, by provider uuid and resource class."""
    return {uuid: part.resources for uuid, part in allocations.items()}
