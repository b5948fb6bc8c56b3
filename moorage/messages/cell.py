"""Topic `conductor.<cell uuid>` of the cell bus, served by the cell conductor: its half of everything, and reports."""

from typing import Annotated

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done
from moorage.messages.placement import ProviderReports
from moorage.model import HostReport, Instance, Name, RequestSpec, Selection, Text, Uuid, Value
from moorage.wire import Message, Mutation


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
    instance_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]


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
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    reason: Text


class ReportHostsInCell(Mutation[Done], frozen=True, kw_only=True):
    """What an agent knows of its hosts: descriptions that are new or have changed, and who is alive."""

    topic = "conductor.cell"
    method = "report_hosts"
    agent: Name
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()


class ReportProviderTree(Mutation[Done], frozen=True, kw_only=True):
    """What the providers of an agent's hosts are; answered once the placement role has them."""

    topic = "conductor.cell"
    method = "report_provider_tree"
    agent: Name
    providers: ProviderReports
