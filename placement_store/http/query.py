"""Parse the parameters of a query: uuids, amounts, traits and aggregates."""

import re
import uuid as uuids
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from moorage.model import MOST_CONDITIONS, ResourceGroup
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.versions import Version, v

#: The parameters of a query, each with all its values in the order in which they were sent.
Query = Mapping[str, Sequence[str]]

_IN = "in:"
_FORBIDDEN_TRAITS_SINCE, _ANY_TRAIT_SINCE = v("1.22"), v("1.39")
_REPEATED_AGGREGATES_SINCE, _FORBIDDEN_AGGREGATES_SINCE = v("1.24"), v("1.32")
_MORE_THAN_ANY_INVENTORY = 2**60
_BAD_REQUIRED = (Phrase.INVALID_QUERY, Phrase.BAD_REQUIRED)
_CANONICAL_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID = re.compile(r"(?:urn:uuid:)?\{?[0-9A-Fa-f-]+\}?")


def canonical_uuid(text: str) -> str | None:
    """Return a uuid in its canonical form; null if the text is not a uuid."""
    # Most are in the canonical form, and Python's parser takes several times as long as this.
    if _CANONICAL_UUID.fullmatch(text):
        return text
    # Python's parser would ignore blanks and underscores.
    if not _UUID.fullmatch(text):
        return None
    try:
        return str(uuids.UUID(text))
    except ValueError:
        return None


def resources(text: str) -> dict[str, int]:
    """Parse the amounts in ``CLASS:AMOUNT[,CLASS:AMOUNT...]``; the last amount of a class counts.

    :raises HTTPRefusal: 400, it is malformed.
    """
    if not text.strip():
        raise _bad("nothing is asked for", Phrase.BAD_RESOURCES, Phrase.GOT, sent="empty string")
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, colon, amount = part.partition(":")
        if not colon or ":" in amount:
            raise _bad("an item is malformed", Phrase.BAD_RESOURCES, Phrase.GOT, sent=part)
        try:
            # No inventory is larger, and a database cannot compute with numbers of any size.
            amounts[name] = min(int(amount), _MORE_THAN_ANY_INVENTORY)
        except ValueError as fault:
            raise _bad("it is not a number", Phrase.BAD_AMOUNT, Phrase.GOT, name=name, sent=amount) from fault
        if amounts[name] < 1:
            raise _bad("it is too small", Phrase.SMALL_AMOUNT, Phrase.GOT, name=name, sent=amounts[name])
    return amounts


def group(parameters: Query, suffix: str, version: Version) -> ResourceGroup:
    """Parse the parameters of the group with this suffix.

    :raises HTTPRefusal: 400, one of them is malformed, or has too many conditions.
    """
    found: dict[str, Any] = {}
    # Each value must be well formed, and the last one counts.
    for amounts in parameters.get(f"resources{suffix}", ()):
        found["resources"] = resources(amounts)
    required, any_of, forbidden = traits(parameters.get(f"required{suffix}", ()), version)
    member_of, not_member_of = aggregates(suffix, parameters.get(f"member_of{suffix}", ()), version)
    for name, conditions in (("required", required), ("required", any_of), ("member_of", member_of)):
        check_number(f"{name}{suffix}", conditions)
    for tree in parameters.get(f"in_tree{suffix}", ()):
        found["in_tree"] = canonical_uuid(tree.strip())
        if found["in_tree"] is None:
            raise _bad("it names a provider", Phrase.INVALID_QUERY, Phrase.BAD_IN_TREE, Phrase.GOT, sent=tree)
    return ResourceGroup(
        **found, required=required, any_of=any_of, forbidden=forbidden, member_of=member_of, not_member_of=not_member_of
    )


def check_number(name: str, conditions: Collection[object]) -> None:
    """Check that a parameter has not too many conditions; what is forbidden is one condition in all.

    :raises HTTPRefusal: 400, it has.
    """
    # As over RPC, and for the database, which takes a bounded number of conditions that are joined with AND.
    if len(conditions) > MOST_CONDITIONS:
        raise _bad(f"{name} has more than {MOST_CONDITIONS} conditions", Phrase.INVALID_QUERY)


#: Names, and sets of names of which any one is sufficient.
Names = tuple[str, ...]
Alternatives = tuple[Names, ...]


def traits(texts: Sequence[str], version: Version) -> tuple[Names, Alternatives, Names]:
    """Parse the values of a parameter as required, alternative and forbidden traits.

    From 1.22, ``!TRAIT`` forbids a trait. From 1.39, ``in:TRAIT,TRAIT`` requires any of them, and all values count, not
    only the last.

    :raises HTTPRefusal: 400, a value is malformed.
    """
    may_forbid = version >= _FORBIDDEN_TRAITS_SINCE
    example = f"HW_CPU_X86_VMX,{'!' if may_forbid else ''}CUSTOM_MAGIC"
    required: list[str] = []
    either: list[Names] = []
    forbidden: list[str] = []
    for text in texts if version >= _ANY_TRAIT_SINCE else texts[-1:]:
        if text.startswith(_IN):
            either.append(_any_traits(text, version))
            continue
        for one in (part.strip() for part in text.split(",")):
            name = one.lstrip("!")
            if not name:
                raise _bad(f"a trait is missing in {text}", *_BAD_REQUIRED, example=example)
            if name != one and not may_forbid:
                sentence = "no trait can be forbidden before 1.22"
                raise _bad(sentence, *_BAD_REQUIRED, Phrase.GOT, example=example, sent=text)
            (required if name == one else forbidden).append(name)
    return _distinct(required), tuple(either), _distinct(forbidden)


def _any_traits(text: str, version: Version) -> Names:
    if version < _ANY_TRAIT_SINCE:
        raise _bad("all are required", Phrase.INVALID_QUERY, Phrase.ANY_TRAITS_TOO_OLD, Phrase.GOT, sent=text)
    found = _distinct(part.strip() for part in text.removeprefix(_IN).split(","))
    if not all(found):
        example = "in:HW_CPU_X86_VMX,CUSTOM_MAGIC"
        raise _bad(f"a trait is missing in {text}", *_BAD_REQUIRED, example=example)
    if any(name.startswith("!") for name in found):
        raise _bad("none of these can be forbidden", Phrase.INVALID_QUERY, Phrase.GOT, sent=text)
    return found


def _distinct(names: Iterable[str]) -> Names:
    return tuple(dict.fromkeys(names))


def aggregates(suffix: str, texts: Sequence[str], version: Version) -> tuple[Alternatives, Names]:
    """Parse the values of ``member_of`` of a group as alternative and forbidden aggregates.

    From 1.24, it may be sent more than once. From 1.32, ``!UUID`` and ``!in:UUID,UUID`` forbid aggregates.

    :raises HTTPRefusal: 400, a value is malformed, or the parameter is repeated before 1.24.
    """
    if len(texts) > 1 and version < _REPEATED_AGGREGATES_SINCE:
        raise _bad("it may be sent once", Phrase.ONE_MEMBER_OF, suffix=suffix)
    member_of: list[Names] = []
    not_member_of: list[str] = []
    for text in texts:
        plain = text.removeprefix("!")
        found = _aggregates(text, plain)
        if plain == text:
            member_of.append(found)
        elif version < _FORBIDDEN_AGGREGATES_SINCE:
            raise _bad("it came with 1.32", Phrase.FORBIDDEN_MEMBER_OF, suffix=suffix)
        else:
            not_member_of += found
    return tuple(member_of), _distinct(not_member_of)


def _aggregates(text: str, plain: str) -> Names:
    if "," in plain and not plain.startswith(_IN):
        raise _bad("there is a comma", Phrase.MEMBER_OF_WITHOUT_IN, Phrase.GOT, sent=text)
    found: list[str] = []
    for part in plain.removeprefix(_IN).split(","):
        if (uuid := canonical_uuid(part)) is None:
            raise _bad("it is no uuid", Phrase.INVALID_QUERY, Phrase.BAD_MEMBER_OF, Phrase.GOT, sent=part)
        found.append(uuid)
    return _distinct(found)


def _bad(sentence: str, *phrases: Phrase, **data: Any) -> HTTPRefusal:
    return HTTPRefusal(400, before(f"In the query: {sentence}.", phrases, **data))
