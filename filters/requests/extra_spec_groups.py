"""Parse the resource groups in a flavor's extra specs.

The syntax is Nova's: ``resources[S]:CLASS=amount`` and ``trait[S]:TRAIT=required|forbidden``. S is the suffix of the
group: a number, or a name that begins with an underscore. It is empty for the unsuffixed group. ``member_of[S]`` has
the syntax of Placement's ``member_of``. Other extra specs belong to other plug-ins.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from filters.extra_specs import path_of, wrong
from moorage.model import UNSUFFIXED, ResourceGroup

_SUFFIX = r"[1-9][0-9]{0,62}|_[A-Za-z0-9_-]{1,63}"
_OURS = re.compile(
    rf"(?P<what>resources|trait)(?P<suffix>{_SUFFIX})?:(?P<name>[A-Z0-9_]{{1,255}})|member_of({_SUFFIX})?"
)
#: Matches extra specs that resemble these but are malformed.
_NEARLY_OURS = re.compile(r"resources?[^:]*:.*|traits?[^:]*:.*|member_of.*", re.DOTALL)
_AMOUNT = re.compile(r"[0-9]{1,10}")
_MOST = 2**31 - 1


class GroupSpecs(NamedTuple):
    """The resource group of the extra specs with one suffix, and the path of the first of them."""

    path: str
    group: ResourceGroup


def group_specs(extra_specs: Mapping[str, str]) -> dict[str, GroupSpecs]:
    """Return the parsed groups by suffix.

    :raises InvalidRequest: an extra spec is malformed; the error has its path.
    """
    found: dict[str, GroupSpecs] = {}
    # Sorted, so that the order is the same in every process.
    for key, value in sorted(extra_specs.items()):
        word = _OURS.fullmatch(key)
        if word is None:
            if _NEARLY_OURS.fullmatch(key):
                raise wrong(
                    key,
                    "not understood: a group is a number or a name that begins with _, and the names of classes and "
                    "traits are upper-case letters, digits and _",
                )
            continue
        _read(found, key, value.strip())
    return found


def suffix_lists(value: str) -> Iterator[tuple[str, ...]]:
    """Yield the lists of ``same_subtree``: commas separate suffixes, semicolons separate lists.

    :raises InvalidRequest: a suffix is not valid.
    """
    for part in value.split(";"):
        suffixes = tuple(suffix.strip() for suffix in part.split(","))
        if not all(re.fullmatch(_SUFFIX, suffix) for suffix in suffixes):
            raise wrong("same_subtree", f"{part.strip()!r:.60} is no list of the suffixes of groups")
        yield suffixes


def _read(found: dict[str, GroupSpecs], key: str, value: str) -> None:
    what, _, name = key.partition(":")
    kind = next(kind for kind in ("resources", "trait", "member_of") if what.startswith(kind))
    suffix = what.removeprefix(kind)
    first_path, group = found.get(suffix, (path_of(key), ResourceGroup()))
    if kind == "resources":
        least = 0 if suffix == UNSUFFIXED else 1
        group = structs.replace(group, resources={**group.resources, name: _amount(value, key, least)})
    elif kind == "trait":
        if value not in ("required", "forbidden"):
            raise wrong(key, f"{value!r:.60} is neither required nor forbidden")
        group = structs.replace(group, **{value: (*getattr(group, value), name)})
    else:
        group = _in_aggregates(group, value, key)
    found[suffix] = GroupSpecs(first_path, group)


def _amount(value: str, key: str, least: int) -> int:
    if not _AMOUNT.fullmatch(value) or not least <= int(value) <= _MOST:
        raise wrong(key, f"{value!r:.60} is no amount from {least} to {_MOST}")
    return int(value)


def _in_aggregates(group: ResourceGroup, value: str, key: str) -> ResourceGroup:
    """Return a group with the aggregates of a value: ``uuid`` or ``in:uuid,uuid``; ``!`` before it forbids them."""
    listed = value.removeprefix("!")
    uuids = listed.removeprefix("in:").split(",") if listed.startswith("in:") else [listed]
    aggregates = tuple(_uuid(uuid.strip(), key) for uuid in uuids)
    if value.startswith("!"):
        return structs.replace(group, not_member_of=(*group.not_member_of, *aggregates))
    return structs.replace(group, member_of=(*group.member_of, aggregates))


def _uuid(text: str, key: str) -> str:
    try:
        return str(UUID(text))
    except ValueError as fault:
        raise wrong(key, f"{text!r:.60} is not the uuid of an aggregate") from fault
