"""The payloads of a cell's steps: recorded with a step before it is done. Their field names are stored."""

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

#: The fate of an attempt's guest, which decides what happens to the claim. ``gone``: the host has confirmed that there
#: is no guest; the claim is released. ``unstarted``: the claim is released if no host has accepted it; otherwise the
#: operation waits for the host's report. ``unknown``: an accepted claim stays, as a residue, until the guest is gone.
Fate = Literal["gone", "unstarted", "unknown"]


class StartStep(Value, frozen=True, kw_only=True):
    """Steps `stop`, `start` and `wait` of an attempt, and the steps of a shelving: the number of the attempt."""

    number: int
    #: The number of times that the start of an evacuation has waited to learn whether its source is forced down.
    waited: int = 0


class HostOrderStep(Value, frozen=True, kw_only=True):
    """The payload of a step that orders a host to do something with a guest, until the host has done it."""

    #: The number of times that the host has answered that the order is in progress, and the time of the first of these
    #: answers, by the database's clock.
    waited: int = 0
    waits_since: float | None = None


class SwapStep(Value, frozen=True, kw_only=True):
    """Step `swap`: the numbers of the failed attempt and of the next one."""

    failed: int
    candidate: int
    fate: Fate
    reason: str
    #: The allocation request of the next attempt, translated if the host was reshaped since it was selected.
    translated: AllocationRequest | None = None
    #: The number of times that the operation has waited for the next host because the host was returning.
    waited: int = 0


class ReleaseStep(Value, frozen=True, kw_only=True):
    """Step `release` of a build or an unshelving: every attempt has failed."""

    #: The number of the last attempt, and its fate. If null, all allocations of the instance are released, for good.
    failed: int | None
    fate: Fate
    #: The reason of the last failure, or of the error state if the other hosts were not tried.
    reason: str
    #: The claim of an unshelving without an attempt: the instance may be placed again before the claim is released.
    claim_id: Uuid | None = None


class GiveBackStep(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `give_back`: the instance returns to its source, because every attempt has failed or by a revert."""

    #: The number of the attempt that has the claim on a destination, and the fate of its guest.
    failed: int
    fate: Fate
    #: The reason of the move's failure; null for a revert.
    reason: str | None
    #: The guest on the source was stopped, or may have been stopped.
    stopped: bool = True


class RestartStep(HostOrderStep, frozen=True, kw_only=True):
    """Step `restart` of a move or of its revert: the instance is back on its source."""

    reason: str | None
    #: A description of the foreign allocations on the destination that were released or kept.
    extras: str | None = None


class EndMoveStep(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `end` of a confirm: the fate of the source's guest."""

    fate: Fate


class RebuildStep(HostOrderStep, frozen=True, kw_only=True):
    """The step of a rebuild."""

    image: Image


class ChooseStep(Value, frozen=True, kw_only=True):
    """Step `choose` of attaching a resource group, and step `read` of detaching one."""

    suffix: Suffix
    group: ResourceGroup
    #: The number of the instance's active attempt; null for a shelved instance.
    number: int | None
    #: The number of recorded writes, and the number of writes that conflicted with another client.
    writes: int = 0
    conflicts: int = 0
    #: The providers that were chosen but had no capacity.
    refused: tuple[Uuid, ...] = ()


class WriteStep(Value, frozen=True, kw_only=True):
    """Steps `write` and `fence` of both: the consumer's allocations as they were read, and as they must be written."""

    choosing: ChooseStep
    #: The provider for the group, if it is attached.
    provider_uuid: Uuid | None = None
    before: ConsumerAllocations
    after: Allocations
    #: If groups are isolated: the group with its provider, or without a provider if it is detached.
    isolated: dict[Suffix, tuple[Uuid, ...]] = msgspec.field(default_factory=dict)


class DestroyAllStep(Value, frozen=True, kw_only=True):
    """Step `destroy` of a deletion."""

    #: The attempts that may have a residue that no record names, because the deletion has interrupted their step. They
    #: are cleaned up even if their hosts have reported the guests as gone.
    left: tuple[Uuid, ...] = ()


class ReleaseAllStep(RelyingOnGenerations, frozen=True, kw_only=True):
    """Step `release` of a deletion."""

    #: A host that may have the guest has not answered.
    leave_residue: bool
    #: The attempts with allocations whose hosts have confirmed that the guest is gone.
    guests_gone: tuple[str, ...] = ()
    #: As in :class:`DestroyAllStep`.
    left: tuple[Uuid, ...] = ()


class CleanStep(Value, frozen=True, kw_only=True):
    """Both steps of a cleanup, whose subject is the attempt."""

    instance_uuid: str
    #: The consumer that holds the residue, if its uuid is not the attempt's id.
    residue_uuid: str | None = None


class HealStep(Value, frozen=True, kw_only=True):
    """The step of a heal: the consumers of the instance, as the audit has seen them in the store."""

    seen: dict[Uuid, SeenConsumer]
