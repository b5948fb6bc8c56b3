"""Parse the parameters of a query: uuids, amounts, traits and aggregates."""

import re
import uuid as uuids
from collections.abc import Collection, Iterable, Mapping, Sequence

from moorage.model import ResourceGroup
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.versions import Version, v

_IN = "in:"
_FORBIDDEN_TRAITS_SINCE, _ANY_TRAIT_SINCE = v("1.22"), v("1.39")
_REPEATED_AGGREGATES_SINCE, _FORBIDDEN_AGGREGATES_SINCE = v("1.24"), v("1.32")
_UUID = re.compile(r"(?:urn:uuid:)?\{?[0-9A-Fa-f-]+\}?")
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")


class Query:
    """The parameters of a query, each with all its values in the order in which they were sent."""

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    @property
    def last_values(self) -> dict[str, str]:
        """The last value of each parameter: the schemas of queries describe these."""
        return {name: values[-1] for name, values in self._values.items()}

    @property
    def names(self) -> Collection[str]:
        """The names of the parameters."""
        return self._values.keys()

    def last(self, name: str) -> str | None:
        """Return the last value of a parameter; null where it was not sent."""
        values = self._values.get(name)
        return values[-1] if values else None

    def all(self, name: str) -> Sequence[str]:
        """Return all values of a parameter, in the order in which they were sent."""
        return self._values.get(name, ())


def canonical_uuid(text: str) -> str | None:
    """Return a uuid in its canonical form; null where the text is not a uuid."""
    # Python's parser would ignore blanks and underscores.
    if not _UUID.fullmatch(text):
        return None
    try:
        return str(uuids.UUID(text))
    except ValueError:
        return None


def uuid_of(name: str, text: str) -> str:
    """Parse the value of parameter ``name`` as a uuid.

    :raises HTTPRefusal: 400, it is not a uuid.
    """
    uuid = canonical_uuid(text)
    if uuid is None:
        raise _bad(name, f"{text!r} is not a uuid")
    return uuid


def resources(name: str, text: str) -> dict[str, int]:
    """Parse the amounts in ``CLASS:AMOUNT[,CLASS:AMOUNT...]``.

    :raises HTTPRefusal: 400, it is malformed, or names a class twice.
    """
    amounts: dict[str, int] = {}
    for part in text.split(","):
        resource_class, _, amount = part.partition(":")
        if not resource_class or not amount.isascii() or not amount.isdecimal():
            raise _bad(name, "expected CLASS:AMOUNT[,CLASS:AMOUNT...]")
        if resource_class in amounts:
            raise _bad(name, f"{resource_class} stands there twice")
        if not 1 <= int(amount) <= 2**31 - 1:
            raise _bad(name, f"{resource_class} cannot have an amount of {amount}")
        amounts[resource_class] = int(amount)
    return amounts


def group(parameters: Query, suffix: str, version: Version) -> ResourceGroup:
    """Parse the parameters of the group with this suffix.

    :raises HTTPRefusal: 400, one of them is malformed.
    """
    amounts, tree = parameters.last(f"resources{suffix}"), parameters.last(f"in_tree{suffix}")
    required, any_of, forbidden = traits(f"required{suffix}", parameters.all(f"required{suffix}"), version)
    member_of, not_member_of = aggregates(f"member_of{suffix}", parameters.all(f"member_of{suffix}"), version)
    return ResourceGroup(
        resources={} if amounts is None else resources(f"resources{suffix}", amounts),
        required=required,
        any_of=any_of,
        forbidden=forbidden,
        member_of=member_of,
        not_member_of=not_member_of,
        in_tree=None if tree is None else uuid_of(f"in_tree{suffix}", tree),
    )


#: Names, and sets of names of which any one will do.
Names = tuple[str, ...]
Alternatives = tuple[Names, ...]


def traits(name: str, texts: Sequence[str], version: Version) -> tuple[Names, Alternatives, Names]:
    """Parse the values of parameter ``name`` as required, alternative and forbidden traits.

    From 1.22 ``!TRAIT`` forbids one; from 1.39 ``in:TRAIT,TRAIT`` requires any of them, and all values count, not only
    the last.

    :raises HTTPRefusal: 400, a value is malformed.
    """
    required: list[str] = []
    either: list[tuple[str, ...]] = []
    forbidden: list[str] = []
    for text in texts if version >= _ANY_TRAIT_SINCE else texts[-1:]:
        if version >= _ANY_TRAIT_SINCE and text.startswith(_IN):
            either.append(_distinct(_trait(name, one) for one in text.removeprefix(_IN).split(",")))
            continue
        for one in text.split(","):
            if version >= _FORBIDDEN_TRAITS_SINCE and one.startswith("!"):
                forbidden.append(_trait(name, one[1:]))
            else:
                required.append(_trait(name, one))
    return _distinct(required), tuple(either), _distinct(forbidden)


def _trait(name: str, text: str) -> str:
    if not _TRAIT.fullmatch(text):
        raise _bad(name, f"{text[:255]!r} is not the name of a trait; expected TRAIT[,TRAIT...]")
    return text


def _distinct(names: Iterable[str]) -> Names:
    return tuple(dict.fromkeys(names))


def aggregates(name: str, texts: Sequence[str], version: Version) -> tuple[Alternatives, Names]:
    """Parse the values of parameter ``name`` as alternative and forbidden aggregates.

    From 1.24 it may be sent more than once; from 1.32 ``!UUID`` and ``!in:UUID,UUID`` forbid.

    :raises HTTPRefusal: 400, a value is malformed, or the parameter is repeated before 1.24.
    """
    if len(texts) > 1 and version < _REPEATED_AGGREGATES_SINCE:
        raise _bad(name, "it may be sent once")
    member_of: list[tuple[str, ...]] = []
    not_member_of: list[str] = []
    for text in texts:
        plain = text[1:] if version >= _FORBIDDEN_AGGREGATES_SINCE and text.startswith("!") else text
        parts = plain.removeprefix(_IN).split(",") if plain.startswith(_IN) else [plain]
        found = _distinct(uuid_of(name, part) for part in parts)
        if plain is text:
            member_of.append(found)
        else:
            not_member_of += found
    return tuple(member_of), _distinct(not_member_of)


def _bad(name: str, reason: str) -> HTTPRefusal:
    return HTTPRefusal(400, f"Invalid query string parameters: {name}: {reason}")
