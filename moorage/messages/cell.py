"""Topic `conductor.<cell uuid>` of the cell bus, served by the cell conductor: its half of everything, and reports."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done, ListInParts
from moorage.messages.conductor import Ownership, UnknownGuestKey
from moorage.messages.providers import CallersDeals, Children, MoveInstructions, ProviderReports, ProvidersReported
from moorage.messages.wire import Message, Mutation
from moorage.model import (
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

#: Numbers of an agent's messages, from 1 on.
MessageNumber = Annotated[int, Meta(ge=1, le=2_000_000_000)]
#: How often a host has begun to return: each time is a new life of it.
HostLife = Annotated[int, Meta(ge=0, le=2_000_000_000)]
HostLives = Annotated[dict[Name, HostLife], Meta(max_length=20_000)]


class InstanceBuild(Value, frozen=True, kw_only=True):
    """An instance handed to a cell, with the claimed selection first and its alternates after it."""

    instance_uuid: Uuid
    request_spec: RequestSpec
    selections: Annotated[tuple[Selection, ...], Meta(min_length=1, max_length=101)]


class BuildInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `build_instances`; answered once the cell has the instances on record."""

    topic = "conductor.cell"
    method = "build_instances"
    builds: Annotated[tuple[InstanceBuild, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class DeleteInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `delete_instance`."""

    topic = "conductor.cell"
    method = "delete_instance"
    instance_uuid: Uuid


class ShowInCell(Message[list[Instance]], frozen=True, kw_only=True):
    """The cell's half of `show_instance` and `list_instances`: those of the named ones that the cell knows."""

    topic = "conductor.cell"
    method = "list_instances"
    since: ClassVar = {"with_request": "1.4"}
    instance_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]
    #: With what was asked for, as it stands by now (``Instance.request_spec``).
    with_request: bool = False


class AcceptInCell(Mutation[Done], frozen=True, kw_only=True):
    """The first gate, asked by the host before it starts anything."""

    topic = "conductor.cell"
    method = "accept_claim"
    instance_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


class BuildFinished(Mutation[Done], frozen=True, kw_only=True):
    """The second gate: the guest runs. Refused with ``ClaimReleased``, the host destroys it."""

    topic = "conductor.cell"
    method = "build_finished"
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid


class BuildFailedInCell(Mutation[Done], frozen=True, kw_only=True):
    """The attempt has failed on its host, and nothing of the guest is left there."""

    topic = "conductor.cell"
    method = "build_failed"
    since: ClassVar = {"life": "1.6", "no_other_host": "1.6"}
    guards: ClassVar = frozenset({"no_other_host"})
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    reason: Text
    #: The fault lies with what was asked for: it would fail everywhere, and no other host is to be tried.
    no_other_host: bool | None = None
    #: The life of the host in which nothing is left. Without it the report proves nothing of an attempt that is older
    #: than the host's present life.
    life: HostLife | None = None


class HostsReported(Value, frozen=True, kw_only=True):
    """The answer of a cell to a report."""

    #: Hosts that this cell has missed, or that have started anew: they do not count as up before `return_hosts`.
    returning: tuple[Name, ...] = ()
    #: The present life of each of them, which `return_hosts` names.
    lives: dict[Name, HostLife] = {}
    #: Hosts that the schedulers do not know: their providers are to be reported, and then they are to be described, as
    #: if they had just started.
    undescribed: tuple[Name, ...] = ()
    #: Another incarnation of the agent has reported since: if this one still runs, it begins anew under another uuid.
    superseded: bool = False


class ReportHostsInCell(Mutation[HostsReported], frozen=True, kw_only=True):
    """What an agent knows of its hosts: descriptions that are new or have changed, and who is alive.

    ``started`` names hosts whose agent has just started: what it left unfinished is not known to it any more.
    Descriptions and heartbeats do not travel in one message where they are numbered.
    """

    topic = "conductor.cell"
    method = "report_hosts"
    since: ClassVar = {"started": "1.1", "incarnation": "1.6", "number": "1.6"}
    agent: Name
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    started: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    #: Of the agent's process, and the number of this message within it: a late one changes nothing.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class ReportProviderTree(Mutation[ProvidersReported], frozen=True, kw_only=True):
    """What the providers of an agent's hosts are; answered once the placement role has them."""

    topic = "conductor.cell"
    method = "report_provider_tree"
    since: ClassVar = {"gone": "1.2", "incarnation": "1.6", "number": "1.6"}
    agent: Name
    providers: ProviderReports
    gone: Annotated[tuple[Uuid, ...], Meta(max_length=1000)] = ()
    #: As in :class:`ReportHostsInCell`.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class ListProviderTreesInCell(Message[list[ResourceProvider]], frozen=True, kw_only=True):
    """All providers of the trees that these belong to, as the placement role has them now."""

    topic = "conductor.cell"
    method = "list_provider_trees"
    version = "1.2"
    uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=1000)]


class ReshapeProviderTree(Mutation[ReshapePlan], frozen=True, kw_only=True):
    """Move inventories within the tree of one of an agent's hosts; answered once the placement role has done it."""

    topic = "conductor.cell"
    method = "reshape_provider_tree"
    version = "1.2"
    since: ClassVar = {"incarnation": "1.6", "number": "1.6", "dealt": "1.6"}
    agent: Name
    instructions: MoveInstructions
    providers: Children = ()
    #: As in :class:`~moorage.messages.ReshapeByInstructions`.
    dealt: CallersDeals = ()
    #: As in :class:`ReportHostsInCell`.
    incarnation: Uuid | None = None
    number: MessageNumber = 1


class ListEndedAttempts(Message[list[EndedAttempt]], frozen=True, kw_only=True):
    """The ended attempts of these hosts whose guests are not known to be gone."""

    topic = "conductor.cell"
    method = "list_ended_attempts"
    version = "1.1"
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]


class AttemptsGone(Mutation[Done], frozen=True, kw_only=True):
    """The host has nothing of these attempts, and nothing of them will come."""

    topic = "conductor.cell"
    method = "attempts_gone"
    version = "1.1"
    since: ClassVar = {"lives": "1.6"}
    agent: Name
    attempts: Annotated[tuple[EndedAttempt, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: The lives of their hosts as the agent knows them: a message of an earlier life changes nothing.
    lives: HostLives = {}


class ReturnHosts(Mutation[Done], frozen=True, kw_only=True):
    """Hosts have worked through their ended attempts, and have these guests: from now on they count as up.

    A guest that the cell knows nothing of is recorded as a stranger and left running. An attempt that was ordered in an
    earlier life, is current here and whose guest is not among them has failed with its host. A host that is not
    returning, or is in another life than the message names, is left out. Without ``lives`` the message proves of no
    guest that it is gone.
    """

    topic = "conductor.cell"
    method = "return_hosts"
    version = "1.1"
    since: ClassVar = {"lives": "1.6"}
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]
    guests: Annotated[tuple[Guest, ...], Meta(max_length=20_000)] = ()
    #: As the cell has named them (``HostsReported.lives``) before the guests were counted.
    lives: HostLives = {}


class OwnsClaimInCell(Mutation[Ownership], frozen=True, kw_only=True):
    """The cell's half of `owns_claim`: it alone may say "not mine", and then refuses what comes late."""

    topic = "conductor.cell"
    method = "owns_claim"
    version = "1.1"
    consumer_uuid: Uuid
    claim_id: Uuid


class ListOperationsInCell(ListInParts[list[OperationSummary]], frozen=True, kw_only=True):
    """The cell's half of `list_operations` and `show_operation`."""

    topic = "conductor.cell"
    method = "list_operations"
    version = "1.1"
    ended: bool = False
    instance_uuid: Uuid | None = None
    uuid: Uuid | None = None
    after: Uuid | None = None


class ListStrangersInCell(ListInParts[list[UnknownGuest]], frozen=True, kw_only=True):
    """The cell's half of `list_strangers`."""

    topic = "conductor.cell"
    method = "list_strangers"
    version = "1.1"
    after: UnknownGuestKey | None = None
