"""Base types of the model: names, amounts, and the base class of all values."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, get_args

import msgspec
from msgspec import Meta

from moorage import control_characters

#: A uuid in its canonical, lower-case form.
Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")]
#: Identifies a request across retries; see :mod:`moorage.service.stored_requests`.
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
ResourceClassName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
ConsumerType = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
TraitName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
#: The suffix of a resource group; the empty one is that of the unsuffixed group.
Suffix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")]
#: The name of a host, node, agent, cell, zone, project or user.
Name = Annotated[str, Meta(min_length=1, max_length=255)]
#: A name for something new, or a new name for something that exists: without a trailing blank or control characters.
#: MySQL ignores trailing blanks in comparisons, SQLite and Python do not. Existing names may have them.
NewName = Annotated[str, Meta(min_length=1, max_length=255, pattern=rf"^[^{control_characters.RANGES}]*(?<=\S)\Z")]
#: The same for a resource provider: Placement's API accepts control characters.
NewProviderName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"\S\Z")]
#: An amount of a resource. The bound is Placement's, and keeps every sum within a signed 64-bit integer.
Amount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: The number of a row, or of its version: the range of a column for numbers.
RowNumber = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Generation = RowNumber
LONGEST_TEXT = 4096
#: Values of extra specs, image properties and hints: long enough for any policy, short enough to store.
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]

Resources = dict[ResourceClassName, Amount]

#: A description of each pattern of a text, to follow the word "Expected".
PATTERNS: Mapping[str, str] = {
    get_args(kind)[-1].pattern: words
    for kind, words in (
        (Uuid, "a uuid in lower case, such as 5d3f8a1c-0b52-4c1e-9d0e-2f6a7b8c9d10"),
        (RequestId, "1 to 64 letters, digits and . _ : -"),
        (TraitName, "1 to 255 capital letters, digits and underscores"),
        (Suffix, "at most 64 letters, digits, underscores and hyphens"),
        (NewName, "a name without control characters that does not end with a blank"),
        (NewProviderName, "a name that does not end with a blank"),
    )
}

VCPU = "VCPU"
MEMORY_MB = "MEMORY_MB"
DISK_GB = "DISK_GB"


def fault_of_name(name: str) -> str | None:
    """Return what is wrong with the name of something new, as a phrase after "it"; None if nothing is."""
    if name[-1].isspace():
        return "ends with a blank"
    return "has a control character" if control_characters.are_in(name) else None


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base class of all values: frozen, keyword-only, encoded without fields at their defaults."""

    #: Fields added after version 1.5, each with its version: any message that contains one is sent at that version.
    since: ClassVar[Mapping[str, str]] = {}
