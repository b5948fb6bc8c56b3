"""Topic `conductor.<cell uuid>` of the cell bus, served by cell conductors: their half of operations, and reports."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done, ListInParts, ToCell
from moorage.messages.conductor import Ownership, UnknownGuestKey
from moorage.messages.providers import (
    Children,
    GivenReallocations,
    MoveInstructions,
    ProviderReports,
    ProvidersReported,
)
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Cell,
    EndedAttempt,
    Guest,
    HostReport,
    Instance,
    Name,
    RequestSpec,
    ReshapePlan,
    ResourceProvider,
    Selection,
    Text,
    Uuid,
    Value,
)
from moorage.model.inspection import OperationSummary, UnknownGuest

#: The number of an agent's message; numbers begin at 1.
MessageNumber = Annotated[int, Meta(ge=1, le=2_000_000_000)]
#: The number of a host's life. Each time that the host begins to return, a new life begins.
HostLife = Annotated[int, Meta(ge=0, le=2_000_000_000)]
LifeByHost = Annotated[dict[Name, HostLife], Meta(max_length=20_000)]


class InstanceBuild(Value, frozen=True, kw_only=True):
    """An instance handed to a cell, with the claimed selection first and its alternates after it."""

    instance_uuid: Uuid
    request_spec: RequestSpec
    selections: Annotated[tuple[Selection, ...], Meta(min_length=1, max_length=101)]


class BuildInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """The cell's half of `build_instances`; answered once the cell has recorded the instances."""

    method = "build_instances"
    may_be_batched = True
    builds: Annotated[tuple[InstanceBuild, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class DeleteInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """The cell's half of `delete_instance`."""

    method = "delete_instance"
    may_be_batched = True
    instance_uuid: Uuid


class ShowInCell(Message[list[Instance]], ToCell, frozen=True, kw_only=True):
    """The cell's half of `show_instance` and `list_instances`: the named instances that the cell has."""

    method = "list_instances"
    may_be_batched = True
    since: ClassVar = {"with_request": "1.4"}
    instance_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]
    #: Include the present request (``Instance.request_spec``).
    with_request: bool = False


class AcceptInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """The first gate, sent by the host before it starts anything."""

    method = "accept_claim"
    may_be_batched = True
    instance_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


class BuildFinished(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """The second gate: the guest runs. Refused with ``ClaimReleased``, the host destroys it."""

    may_be_batched = True
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid


class BuildFailedInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """Report that the attempt has failed on its host, and nothing of the guest is left there."""

    method = "build_failed"
    may_be_batched = True
    since: ClassVar = {"life": "1.6", "no_other_host": "1.6"}
    guards: ClassVar = frozenset({"no_other_host"})
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    reason: Text
    #: The request itself is at fault: the build would fail everywhere, and no other host must be tried.
    no_other_host: bool | None = None
    #: The life of the host in which nothing is left. Without it the report is no proof for an attempt that is older
    #: than the host's present life.
    life: HostLife | None = None


class HostsReported(Value, frozen=True, kw_only=True):
    """The answer of a cell to a report."""

    #: Hosts that were silent for too long or have restarted: they do not count as up before `return_hosts`.
    returning: tuple[Name, ...] = ()
    #: The present life of each of them, to be sent back by `return_hosts`.
    lives: dict[Name, HostLife] = {}
    #: Hosts that the schedulers do not have: the agent reports their providers and then describes them, as at its
    #: start.
    undescribed: tuple[Name, ...] = ()
    #: Another incarnation of the agent has reported since: this one, if it still runs, begins another incarnation.
    superseded: bool = False
    #: Those of the intended hosts that belong to other agents, which are alive; each with its agent.
    of_others: dict[Name, Name] = {}


class ReportHostsInCell(Mutation[HostsReported], ToCell, frozen=True, kw_only=True):
    """Report hosts of an agent: new or changed descriptions, or heartbeats of those that are alive.

    ``started`` names hosts whose agent has just started and so has lost its attempts in progress. ``withheld`` names
    hosts that are alive, but of which the agent cannot report what they have: no server may come, and guests can be
    destroyed. A numbered message has either descriptions or heartbeats. ``intended`` names hosts that the agent is
    about to describe: the answer names those that belong to other agents.
    """

    method = "report_hosts"
    may_be_batched = True
    since: ClassVar = {
        "started": "1.1",
        "incarnation": "1.6",
        "number": "1.6",
        "withheld": "1.7",
        "intended": "1.8",
    }
    guards: ClassVar = frozenset({"intended"})
    agent: Name
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    started: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    withheld: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    intended: Annotated[tuple[Name, ...], Meta(max_length=20_000)] | None = None
    #: The incarnation of the agent, and the number of this message within it: a late one changes nothing.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class LocateCellInCell(Message[Cell], ToCell, frozen=True, kw_only=True):
    """Return the cell of these conductors, without its URLs.

    An agent that is configured with the uuid of its cell does not ask the placement role, but compares the names.
    """

    method = "locate_cell"
    version = "1.7"
    #: The name that the caller expects. If it is not the name that the conductor has started with, the conductor looks
    #: up the present one.
    name: Name


class ReportProviderTree(Mutation[ProvidersReported], ToCell, frozen=True, kw_only=True):
    """Report the provider trees of an agent's hosts; answered once the placement role has them."""

    since: ClassVar = {"gone": "1.2", "incarnation": "1.6", "number": "1.6"}
    agent: Name
    providers: ProviderReports
    gone: Annotated[tuple[Uuid, ...], Meta(max_length=1000)] = ()
    #: As in :class:`ReportHostsInCell`.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class ListProviderTreesInCell(Message[list[ResourceProvider]], ToCell, frozen=True, kw_only=True):
    """List all providers of the trees of these providers, as the placement role has them now."""

    method = "list_provider_trees"
    version = "1.2"
    uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=1000)]


class ReshapeProviderTree(Mutation[ReshapePlan], ToCell, frozen=True, kw_only=True):
    """Move inventories within the tree of one of an agent's hosts; answered once the placement role has done it."""

    version = "1.2"
    since: ClassVar = {"incarnation": "1.6", "number": "1.6", "dealt": "1.6"}
    agent: Name
    instructions: MoveInstructions
    providers: Children = ()
    #: As in :class:`~moorage.messages.ReshapeByInstructions`.
    dealt: GivenReallocations = ()
    #: As in :class:`ReportHostsInCell`.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class ListEndedAttempts(Message[list[EndedAttempt]], ToCell, frozen=True, kw_only=True):
    """List the ended attempts of these hosts whose guests are not known to be gone."""

    version = "1.1"
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]


class AttemptsGone(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """Report that nothing is left of these attempts on their hosts, and nothing will be started."""

    may_be_batched = True
    version = "1.1"
    since: ClassVar = {"lives": "1.6"}
    agent: Name
    attempts: Annotated[tuple[EndedAttempt, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: The lives of their hosts as last received by the agent: a message of an earlier life changes nothing.
    lives: LifeByHost = {}


class ReturnHosts(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """Report that hosts have destroyed their ended attempts and have these guests: from now on they count as up.

    A guest without a record is recorded as an unknown guest and left running. A current attempt that was ordered in an
    earlier life, and whose guest is not among them, has failed with its host. A host that is not returning, or is in
    another life than the message names, is skipped. Without ``lives`` the message is no proof that a guest is gone.
    """

    version = "1.1"
    since: ClassVar = {"lives": "1.6"}
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]
    guests: Annotated[tuple[Guest, ...], Meta(max_length=20_000)] = ()
    #: As received from the cell (``HostsReported.lives``) before the guests were listed.
    lives: LifeByHost = {}


class OwnsClaimInCell(Mutation[Ownership], ToCell, frozen=True, kw_only=True):
    """The cell's half of `owns_claim`: only the cell may disown a claim, and then it refuses late messages for it."""

    method = "owns_claim"
    may_be_batched = True
    version = "1.1"
    consumer_uuid: Uuid
    claim_id: Uuid


class ListOperationsInCell(ListInParts[list[OperationSummary]], ToCell, frozen=True, kw_only=True):
    """The cell's half of `list_operations` and `show_operation`."""

    method = "list_operations"
    version = "1.1"
    ended: bool = False
    instance_uuid: Uuid | None = None
    uuid: Uuid | None = None
    after: Uuid | None = None


class ListStrangersInCell(ListInParts[list[UnknownGuest]], ToCell, frozen=True, kw_only=True):
    """The cell's half of `list_strangers`."""

    method = "list_strangers"
    version = "1.1"
    after: UnknownGuestKey | None = None
