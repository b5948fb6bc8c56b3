"""What a cell writes down before each of its steps."""

from typing import Literal

import msgspec

from conductor.engine.conflict_policy import RelyingOnGenerations
from moorage.model import (
    AllocationRequest,
    Allocations,
    ConsumerAllocations,
    Image,
    ResourceGroup,
    SeenConsumer,
    Suffix,
    Uuid,
    Value,
)

#: What is known of the guest of an attempt that has ended, and so what becomes of its claim. ``gone``: its host has
#: said so, the claim is released. ``unstarted``: it is so if no host has accepted the claim; if one has, its report is
#: waited for. ``unknown``: what was accepted stays held, as a residue, until nothing of the guest is left.
Fate = Literal["gone", "unstarted", "unknown"]


class Starting(Value, frozen=True, kw_only=True):
    """Steps `stop`, `start` and `wait` of a course: the attempt by its number."""

    number: int


class Swapping(Value, frozen=True, kw_only=True):
    """Step `swap` of a course: from the attempt that has failed to the next one."""

    failed: int
    candidate: int
    fate: Fate
    reason: str
    #: What the next one is claimed with instead, where its host was reshaped since it was chosen.
    translated: AllocationRequest | None = None
    #: How often the next one's host was found returning, and waited for.
    waited: int = 0


class Releasing(Value, frozen=True, kw_only=True):
    """Step `release` of a build or an unshelving: every attempt has failed."""

    #: The last of them, and its fate; without it, whatever the instance may hold goes for good.
    failed: int | None
    fate: Fate
    #: Why the last one has failed, or why the instance is in error without all of them having failed.
    reason: str
    #: Without an attempt, the claim of an unshelving: the instance may be placed again before this is carried out.
    claim_id: Uuid | None = None


class ReturningToSource(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `give_back`: the source is the instance's again, be it that every attempt has failed or that it reverts."""

    #: The attempt that has the claim on a destination, and its fate.
    failed: int
    fate: Fate
    #: Why the move has failed; null for one that is reverted.
    reason: str | None
    #: The source's guest has been stopped, or may have been.
    stopped: bool = True


class Restarting(Value, frozen=True, kw_only=True):
    """Step `restart` of a move or of its revert: the instance is back on its source."""

    reason: str | None
    #: What has become of what others had put on the destination, in words.
    extras: str | None = None


class Ending(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `end` of a confirm: the source's guest has had its time."""

    fate: Fate


class Rebuilding(Value, frozen=True, kw_only=True):
    """The step of a rebuild."""

    image: Image


class Choosing(Value, frozen=True, kw_only=True):
    """Step `choose` of attaching a resource group, and step `read` of detaching one."""

    suffix: Suffix
    group: ResourceGroup
    #: The attempt that the instance is on its host by; null for one that is shelved.
    number: int | None
    #: How many writes have been written down, and how many of them have lost to other writers of the consumer.
    writes: int = 0
    conflicts: int = 0
    #: Providers that were chosen and had no room.
    refused: tuple[Uuid, ...] = ()


class Writing(Value, frozen=True, kw_only=True):
    """Step `write` of both, and step `fence`: all that the consumer was found to hold, and all that it shall hold."""

    choosing: Choosing
    #: What a group that is attached is claimed of.
    provider_uuid: Uuid | None = None
    before: ConsumerAllocations
    after: Allocations
    #: The group with its provider, or without one if it is detached, where groups are isolated.
    isolated: dict[Suffix, tuple[Uuid, ...]] = msgspec.field(default_factory=dict)


class Destroying(Value, frozen=True, kw_only=True):
    """Step `destroy` of a deletion."""

    #: The attempts of which a residue may have been left by a step that the deletion has cut short, which nobody has
    #: recorded: whatever their hosts say, they are cleaned up.
    left: tuple[Uuid, ...] = ()


class Deleting(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `release` of a deletion."""

    #: A host that may have the guest does not answer.
    leave_residue: bool
    #: The attempts of which something is held, and whose hosts have said that nothing is left.
    guests_gone: tuple[str, ...] = ()
    #: As in :class:`Destroying`.
    left: tuple[Uuid, ...] = ()


class Cleaning(Value, frozen=True, kw_only=True):
    """Both steps of a cleaning; its subject is the attempt."""

    instance_uuid: str
    #: What is held for the guest, where that is not known by the attempt's id.
    residue_uuid: str | None = None


class Healing(Value, frozen=True, kw_only=True):
    """The step of a heal: the consumers of the instance, as the store was seen to have them."""

    seen: dict[Uuid, SeenConsumer]
