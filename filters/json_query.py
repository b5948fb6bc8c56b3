"""The filter for a JSON query on hosts in the hint ``query`` (Nova's ``JsonFilter``).

For instance ``["and", [">=", "$free_ram_mb", 4096], ["in", "$rack", "a1", "a2"]]``. The whole query is parsed before
any host is filtered: an invalid part is refused with its path.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import msgspec
import numpy as np

from moorage import errors
from moorage.model import DISK_GB, MEMORY_MB, VCPU, RequestSpec
from moorage.plugin import Amount, Answer, ConditionsFilter, Host, HostView, any_of, measured
from moorage.plugin.hints import path_of

_HINT = "query"
#: Evaluates a part of a query for one host or for all.
Question = Callable[[Host | HostView], Answer]
Comparison = Callable[[Any, Any], Any]

#: Each comparison, and the same one with its sides swapped.
_COMPARISONS: Mapping[str, tuple[Comparison, Comparison]] = {
    "=": (operator.eq, operator.eq),
    "<": (operator.lt, operator.gt),
    "<=": (operator.le, operator.ge),
    ">": (operator.gt, operator.lt),
    ">=": (operator.ge, operator.le),
}
_OPERATORS = (*_COMPARISONS, "in", "not", "and", "or")
#: The values of every host that do not come from its driver, under Nova's names.
_AMOUNTS: Mapping[str, Callable[[Host | HostView], Amount]] = {
    "free_ram_mb": lambda hosts: hosts.free(MEMORY_MB),
    "free_disk_mb": lambda hosts: hosts.free(DISK_GB) * 1024,
    "vcpus_used": lambda hosts: hosts.used(VCPU),
    "num_instances": lambda hosts: hosts.instances,
    "num_io_ops": lambda hosts: hosts.io_ops,
}
#: The maximum nesting depth of a query: more than a query written by hand has.
_DEEPEST = 32
#: The maximum number of names in a query. A name that no query has used before is looked up on every host.
_MOST_NAMES = 32
#: The maximum number of values that `=`, `<`, `<=`, `>` and `>=` of a query compare with, plus its `in`, each of which
#: is one look-up. Each is made for every value that the hosts have: ten thousand hosts have ten thousand addresses.
_MOST_COMPARISONS = 64


class JsonQueryFilter(ConditionsFilter):
    """Passes hosts for which the request's query is true."""

    reason = "is not what the request's query describes"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has a query."""
        return _HINT in request.scheduler_hints

    def check(self, request: RequestSpec) -> None:
        """Refuse an invalid query."""
        _question(request)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the query is true."""
        if (question := _question(request)) is not None:
            yield question(hosts)


def _question(request: RequestSpec) -> Question | None:
    text = request.scheduler_hints.get(_HINT, "")
    if not text.strip():
        return None
    try:
        query = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as fault:
        raise errors.InvalidRequest(path=path_of(_HINT), reason=f"it is no JSON: {fault}") from fault
    question = _read(query, path_of(_HINT), _DEEPEST)
    if len(set(_names(query))) > _MOST_NAMES:
        raise _wrong(path_of(_HINT), f"it has more than {_MOST_NAMES} names of hosts' values")
    if _comparisons(query) > _MOST_COMPARISONS:
        raise _wrong(path_of(_HINT), f"it makes more than {_MOST_COMPARISONS} comparisons")
    return question


def _comparisons(query: Sequence[Any]) -> int:
    """Return how many comparisons a valid query makes for a host."""
    name, *operands = query
    if name in ("not", "and", "or"):
        return sum(map(_comparisons, operands))
    return 1 if name == "in" else len(operands) - 1


def _names(query: Sequence[Any]) -> Iterator[str]:
    """Yield the names of hosts' values in a valid query."""
    for part in query[1:]:
        if isinstance(part, list):
            yield from _names(part)
        elif isinstance(part, str) and part.startswith("$"):
            yield part


# --- Reading --------------------------------------------------------------------------------------------------------


def _read(query: Any, path: str, deeper: int) -> Question:
    if not deeper:
        raise _wrong(path, f"it is more than {_DEEPEST} levels deep")
    if not isinstance(query, list) or not query:
        raise _wrong(path, "it is no list of an operator and what it is about")
    name, *operands = query
    if name not in _OPERATORS:
        raise _wrong(f"{path}[0]", f"{name!r:.60} is no operator; the known ones are: {', '.join(_OPERATORS)}")
    if name in ("not", "and", "or"):
        if not operands or (name == "not" and len(operands) > 1):
            raise _wrong(path, f"{name} takes {'one query' if name == 'not' else 'queries'}, not {len(operands)}")
        return _joined(name, [_read(part, f"{path}[{n}]", deeper - 1) for n, part in enumerate(operands, 1)])
    if len(operands) < 2:
        raise _wrong(path, f"{name} takes at least two operands, and was given {len(operands)}")
    return _comparison(name, operands, path)


def _joined(name: str, questions: Sequence[Question]) -> Question:
    if name == "not":
        return lambda hosts: np.logical_not(questions[0](hosts))
    if name == "or":
        return lambda hosts: any_of(question(hosts) for question in questions)
    return lambda hosts: _all_of(question(hosts) for question in questions)


def _comparison(name: str, operands: Sequence[Any], path: str) -> Question:
    """Parse a comparison of a host's value with values of the request."""
    for place, operand in enumerate(operands, 1):
        if not isinstance(operand, str | int | float):
            raise _wrong(f"{path}[{place}]", "it is neither a text nor a number, nor true or false")
    named = [place for place, operand in enumerate(operands) if isinstance(operand, str) and operand.startswith("$")]
    if named == [0]:
        variable, *values = operands
        compare = operator.eq if name == "in" else _COMPARISONS[name][0]
    elif named == [1] and len(operands) == 2 and name != "in":
        values, variable = [operands[0]], operands[1]
        compare = _COMPARISONS[name][1]
    else:
        raise _wrong(path, f"{name} compares one $name, which comes first, with values")
    known = variable[1:]
    if known not in _AMOUNTS:
        return _comparison_of_attribute(known, None if name == "in" else compare, values)
    for place, value in enumerate(values, 2 if named == [0] else 1):
        if _kind(value) is not float:
            raise _wrong(f"{path}[{place}]", f"{variable} is compared with numbers")
        # JSON allows longer numbers, but they do not fit into a float.
        if math.isnan(measured(value)):
            raise _wrong(f"{path}[{place}]", f"{variable} is compared with numbers of at most 308 digits")
    amount = _AMOUNTS[known]
    join = any_of if name == "in" else _all_of
    return lambda hosts: join(map(partial(compare, amount(hosts)), values))


def _comparison_of_attribute(name: str, compare: Comparison | None, values: Sequence[Any]) -> Question:
    """Return a comparison of an attribute with all of these values; null for whether it is one of them."""
    wanted = tuple((_kind(value), value) for value in values)
    if compare is None:
        equal = frozenset(wanted)
        # A value of no kind equals none of them, and may have no hash.
        return lambda hosts: hosts.where_attribute(
            name, lambda found: (kind := _kind(found)) is not None and (kind, found) in equal
        )

    def holds(found: Any) -> bool:
        # Values of different types are neither equal, nor more, nor less.
        kind = _kind(found)
        return kind is not None and all(kind is other and compare(found, value) for other, value in wanted)

    return lambda hosts: hosts.where_attribute(name, holds)


def _wrong(path: str, reason: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(path=path, reason=reason)


# --- Evaluating -------------------------------------------------------------------------------------------------------


def _kind(value: Any) -> type | None:
    for kind, types in ((bool, bool), (float, int | float), (str, str)):
        if isinstance(value, types):
            return kind
    return None


def _all_of(answers: Iterable[Answer]) -> Answer:
    return reduce(np.logical_and, answers)
