"""Sets of small numbers as the bits of an int, which is how the search holds its domains."""

from collections.abc import Iterable, Iterator

#: A set of numbers: number n is in it if bit n is set.
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
