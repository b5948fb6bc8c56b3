"""Parsing of the resource groups in a flavor's extra specs.

The syntax is Nova's: ``resources[S]:CLASS=amount`` and ``trait[S]:TRAIT=required|forbidden``, where S is a number, or a
name that begins with an underscore, for a suffixed group, and empty for the unsuffixed one. ``member_of[S]`` is
Placement's ``member_of`` likewise. Other extra specs belong to other plug-ins.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from filters.requests.merging import extra_spec
from moorage import errors
from moorage.model import UNSUFFIXED, ResourceGroup

_SUFFIX = r"[1-9][0-9]{0,62}|_[A-Za-z0-9_-]{1,63}"
_OURS = re.compile(
    rf"(?P<what>resources|trait)(?P<suffix>{_SUFFIX})?:(?P<name>[A-Z0-9_]{{1,255}})|member_of({_SUFFIX})?"
)
#: Matches extra specs that resemble these but are malformed.
_NEARLY_OURS = re.compile(r"resources?[^:]*:.*|traits?[^:]*:.*|member_of.*", re.DOTALL)
_AMOUNT = re.compile(r"[0-9]{1,10}")
_MOST = 2**31 - 1


@dataclass(slots=True)
class GroupSpecs:
    """The parsed extra specs of one group, with the path of the first."""

    path: str
    resources: dict[str, int] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    member_of: list[tuple[str, ...]] = field(default_factory=list)
    not_member_of: list[str] = field(default_factory=list)

    def group(self) -> ResourceGroup:
        """Return the resource group."""
        return ResourceGroup(
            resources=self.resources,
            required=tuple(self.required),
            forbidden=tuple(self.forbidden),
            member_of=tuple(self.member_of),
            not_member_of=tuple(self.not_member_of),
        )


def group_specs(extra_specs: Mapping[str, str]) -> dict[str, GroupSpecs]:
    """Return the parsed groups by suffix.

    :raises InvalidRequest: an extra spec is malformed; with its path.
    """
    found: dict[str, GroupSpecs] = {}
    # Sorted, so that the order is the same in every process.
    for key, value in sorted(extra_specs.items()):
        word = _OURS.fullmatch(key)
        if word is None:
            if _NEARLY_OURS.fullmatch(key):
                raise errors.InvalidRequest(
                    path=extra_spec(key),
                    reason="not understood: a group is a number or a name that begins with _, and the names of classes "
                    "and traits are upper-case letters, digits and _",
                )
            continue
        _read(found, key, value.strip())
    return found


def suffix_lists(value: str) -> Iterator[tuple[str, ...]]:
    """Yield the lists of ``same_subtree``: suffixes with commas between them, lists with semicolons.

    :raises InvalidRequest: a suffix is not valid.
    """
    for part in value.split(";"):
        suffixes = tuple(suffix.strip() for suffix in part.split(","))
        if not all(re.fullmatch(_SUFFIX, suffix) for suffix in suffixes):
            raise errors.InvalidRequest(
                path=extra_spec("same_subtree"), reason=f"{part.strip()!r} is no list of the suffixes of groups"
            )
        yield suffixes


def _read(found: dict[str, GroupSpecs], key: str, value: str) -> None:
    path = extra_spec(key)
    what, _, name = key.partition(":")
    kind = next(kind for kind in ("resources", "trait", "member_of") if what.startswith(kind))
    suffix = what.removeprefix(kind)
    specs = found.setdefault(suffix, GroupSpecs(path))
    if kind == "resources":
        specs.resources[name] = _amount(value, path, least=0 if suffix == UNSUFFIXED else 1)
    elif kind == "trait":
        _trait(specs, name, value, path)
    else:
        _membership(specs, value, path)


def _amount(value: str, path: str, least: int) -> int:
    if not _AMOUNT.fullmatch(value) or not least <= int(value) <= _MOST:
        raise errors.InvalidRequest(path=path, reason=f"{value!r:.60} is no amount from {least} to {_MOST}")
    return int(value)


def _trait(specs: GroupSpecs, trait: str, value: str, path: str) -> None:
    if value == "required":
        specs.required.append(trait)
    elif value == "forbidden":
        specs.forbidden.append(trait)
    else:
        raise errors.InvalidRequest(path=path, reason=f"{value!r:.60} is neither required nor forbidden")


def _membership(specs: GroupSpecs, value: str, path: str) -> None:
    """Parse ``uuid``, ``in:uuid,uuid``, or either with a ``!`` before it."""
    listed = value.removeprefix("!")
    uuids = listed.removeprefix("in:").split(",") if listed.startswith("in:") else [listed]
    aggregates = tuple(_uuid(uuid.strip(), path) for uuid in uuids)
    if value.startswith("!"):
        specs.not_member_of.extend(aggregates)
    else:
        specs.member_of.append(aggregates)


def _uuid(text: str, path: str) -> str:
    try:
        return str(UUID(text))
    except ValueError as fault:
        raise errors.InvalidRequest(path=path, reason=f"{text!r:.60} is not the uuid of an aggregate") from fault
