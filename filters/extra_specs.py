"""Parse the requirements of extra specs, with Nova's operators, into predicates on values.

Without an operator, the value must be the same text. A value is text or a number; the value of a host may also be a
list. An absent value meets no requirement.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moorage import errors
from moorage.plugin import measured

#: Returns whether a value meets the requirement.
Requirement = Callable[[Any], bool]

#: ``=`` is "at least", as in Nova.
_OF_NUMBERS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_OF_TEXTS: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}
_OR = "<or>"
#: The form of an operator. An unknown operator is refused: taken as text, it would match no host.
_LIKE_AN_OPERATOR = re.compile(r"s?[<>=!~]+|<[^<>]*>")


def path_of(key: str) -> str:
    """Return the path of an extra spec in a request spec, for errors."""
    return f"$.flavor.extra_specs[{key!r}]"


def wrong(key: str, reason: str) -> errors.InvalidRequest:
    """Return the error for an invalid extra spec."""
    return errors.InvalidRequest(path=path_of(key), reason=reason)


def requirement(text: str, key: str) -> Requirement:
    """Parse the requirement of an extra spec.

    :raises InvalidRequest: the operator is unknown, or operands are missing.
    """
    name, *operands = text.split() or [""]
    if name in _OF_NUMBERS:
        return _number_requirement(_OF_NUMBERS[name], _number(_one(operands, name, key), key))
    if name in _OF_TEXTS:
        return _text_requirement(_OF_TEXTS[name], _one(operands, name, key))
    if name == "<in>":
        return _contains([_one(operands, name, key)])
    if name == "<all-in>":
        if not operands:
            raise wrong(key, f"{name} takes at least one value")
        return _contains(operands)
    if name == _OR:
        return _one_of(_alternatives(operands, key))
    if _LIKE_AN_OPERATOR.fullmatch(name):
        known = ", ".join([*_OF_NUMBERS, *_OF_TEXTS, "<in>", "<all-in>", _OR])
        raise wrong(key, f"{name} is no operator; the known ones are: {known}")
    return _one_of([text])


# --- Operands -------------------------------------------------------------------------------------------------------


def _one(operands: Sequence[str], name: str, key: str) -> str:
    if len(operands) != 1:
        raise wrong(key, f"{name} takes one value, and was given {len(operands)}")
    return operands[0]


def _alternatives(operands: Sequence[str], key: str) -> Sequence[str]:
    """Return the operands of ``<or> A <or> B``; the first operator is already removed."""
    if len(operands) % 2 == 0 or set(operands[1::2]) - {_OR} or _OR in operands[::2]:
        raise wrong(key, f"{_OR} stands before each value, as in: {_OR} A {_OR} B")
    return operands[::2]


def _number(text: str, key: str) -> float:
    if math.isnan(number := measured(text)):
        raise wrong(key, f"{text[:60]!r} is no number")
    return number


# --- What is required -----------------------------------------------------------------------------------------------


def _number_requirement(holds: Callable[[float, float], bool], wanted: float) -> Requirement:
    def required(value: Any) -> bool:
        found = measured(value)
        return not math.isnan(found) and holds(found, wanted)

    return required


def _text_requirement(holds: Callable[[str, str], bool], wanted: str) -> Requirement:
    def required(value: Any) -> bool:
        found = _text(value)
        return found is not None and holds(found, wanted.lower() if isinstance(value, bool) else wanted)

    return required


def _contains(wanted: Sequence[str]) -> Requirement:
    """Return the requirement that a list has all of these items, or that a text contains each of them."""

    def required(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return set(wanted) <= {_text(each) for each in value}
        found = _text(value)
        return found is not None and all(each in found for each in wanted)

    return required


def _one_of(wanted: Sequence[str]) -> Requirement:
    def required(value: Any) -> bool:
        found = _text(value)
        # Drivers report booleans; operators write them as text, in upper or lower case.
        return found in wanted if not isinstance(value, bool) else found in [each.lower() for each in wanted]

    return required


def _text(value: Any) -> str | None:
    """Return a value as text for comparison; None for an absent or structured one."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None
