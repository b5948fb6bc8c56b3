"""Names, amounts, and what all values have in common."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

#: A uuid in its canonical, lower-case form.
Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")]
#: Names a request for its whole life; see :mod:`moorage.service.stored_requests`.
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")]
ResourceClassName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
ConsumerType = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
TraitName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]
#: What a resource group is called; the empty one names the unsuffixed group.
Suffix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}\Z")]
#: The name of a host, node, agent, cell, zone, project or user.
Name = Annotated[str, Meta(min_length=1, max_length=255)]
#: A name that something new is to have, or something that is there from now on. MySQL takes names for equal that differ
#: in trailing blanks only, and SQLite and Python do not. Names that were given earlier may have them.
NewName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"\S\Z")]
#: An amount of a resource. The bound is Placement's, and keeps every sum within a signed 64-bit integer.
Amount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Generation = Annotated[int, Meta(ge=0)]
#: Values of extra specs, image properties and hints: long enough for any policy, short enough to store.
Text = Annotated[str, Meta(max_length=4096)]

Resources = dict[ResourceClassName, Amount]

VCPU = "VCPU"
MEMORY_MB = "MEMORY_MB"
DISK_GB = "DISK_GB"


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all values have in common: frozen, keyword-only, and silent about fields left at their default."""

    #: Fields that came after version 1.5, each with the version that brought it: a message with one is sent at that
    #: version, whatever message it is.
    since: ClassVar[Mapping[str, str]] = {}
