"""The operator's commands to build, list, show and delete instances."""

import argparse
from contextlib import suppress
from typing import Any, get_args

import msgspec
from cliff.show import ShowOne

from conductor.commands.order import INSTANCE_COLUMNS, REQUEST_ID, OrderCommand, add_wait, instance_row
from conductor.commands.timeline import NOTHING, attached, explained, holdings, migrations_of, timeline
from moorage import errors, ids
from moorage.cli import lists, request_arguments
from moorage.cli.arguments import argument
from moorage.cli.command import Configured, ListCommand, Record, Table, shown
from moorage.messages import (
    MAX_INSTANCES,
    BuildInstances,
    DeleteInstance,
    GetAllocations,
    GetResourceProvider,
    ListInstances,
    ShowInstance,
)
from moorage.model import Instance
from moorage.model.allocations import amounts_of, in_words
from moorage.model.states import InstanceState


class InstanceBuildCommand(OrderCommand):
    """Build instances, all of them placed in one decision.

    The options for resource groups are those of `moorage allocation candidate list`. Options after `--group SUFFIX`
    belong to a group that one provider of the host must serve. Options before the first `--group` belong to the
    unsuffixed group, in addition to the flavor.

    If you repeat the command with the same --request-id, it builds nothing new and shows the same instances.
    """

    arguments = (
        lambda parser: request_arguments.add_options(parser, size_required=True),
        argument("--name", metavar="NAME", help="Name of the instance; several instances are named NAME-1, NAME-2, …"),
        argument("--host", metavar="NAME", help="Build only on this host"),
        REQUEST_ID,
        lambda parser: add_wait(
            parser, "built or in error; the exit status is 1 if any is in error or still being built"
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Send the order, and wait if `--wait` is given."""
        count = parsed_args.count
        if not 1 <= count <= MAX_INSTANCES:
            raise errors.InvalidRequest(path="--count", reason=f"from 1 to {MAX_INSTANCES} instances can be ordered")
        request_id = self.named(parsed_args)
        uuids = tuple(ids.derived(request_id, "instance", number) for number in range(count))
        spec = request_arguments.request_spec(parsed_args, self.client)
        if parsed_args.host is not None:
            spec = msgspec.structs.replace(spec, force_hosts=(parsed_args.host,))
        names = _names(parsed_args.name, count)
        self.order(BuildInstances(request_id=request_id, request_spec=spec, instance_uuids=uuids, names=names))
        return INSTANCE_COLUMNS, self.wait(parsed_args, uuids, "active", "building", ends=("error", "deleted"))


def _names(given: str | None, count: int) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if count == 1 else tuple(f"{given}-{number}" for number in range(1, count + 1))


class InstanceList(ListCommand):
    """List instances in the order of their requests."""

    arguments = (
        argument("--project", metavar="NAME", help="List only instances of this project"),
        argument("--name", metavar="NAME", help="List only instances with this name"),
        argument("--state", choices=get_args(InstanceState), help="List only instances in this state"),
        argument("--host", metavar="NAME", help="List only instances on this host"),
        argument("--deleted", action="store_true", help="List deleted instances, too"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Query the super conductor."""
        conductor = self.client("conductor")
        after, most = self.part(parsed_args, lambda uuid: conductor.call(ShowInstance(instance_uuid=uuid)).number)
        found = lists.instances(
            conductor,
            ListInstances(
                project_id=parsed_args.project, deleted=parsed_args.deleted, name=parsed_args.name, after=after
            ),
            most=most,
            wanted=lambda one: parsed_args.state in (None, one.state) and parsed_args.host in (None, one.host),
        )
        return INSTANCE_COLUMNS, [instance_row(instance) for instance in found]


class InstanceShow(Configured, ShowOne):
    """Show an instance, with the host and the outcome of each attempt to build it."""

    only_reads = True
    arguments = (argument("uuid", metavar="INSTANCE", help="Instance (name or uuid)"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Query the super conductor."""
        conductor = self.client("conductor")
        instance = conductor.call(ShowInstance(instance_uuid=lists.instance_uuid(conductor, parsed_args.uuid)))
        flavor = instance.flavor
        fields: dict[str, Any] = {
            "uuid": instance.uuid,
            "name": instance.name,
            "state": instance.state,
            "reason": instance.reason,
            "migration": instance.migration_uuid,
            "cell": instance.cell,
            "host": instance.host,
            "claim_id": instance.claim_id,
            "project": instance.project_id,
            "user": instance.user_id,
            "flavor": f"{flavor.vcpus} VCPU, {flavor.memory_mb} MiB, {flavor.root_gb}+{flavor.ephemeral_gb} GiB",
            "request_id": instance.request_id,
        }
        fields |= timeline(instance) | self._held(instance) | attached(instance, self._providers(instance))
        if instance.explanation is not None:
            fields |= explained(instance.explanation, f"--instance {instance.uuid}")
        return tuple(fields), shown(fields.values())

    def _held(self, instance: Instance) -> dict[str, Any]:
        """Return the claims of the instance, its migrations and its residues, or that they are unknown."""
        attempts = {attempt.attempt_id for attempt in instance.attempts}
        consumers = {instance.uuid, *attempts, *migrations_of(instance)}
        try:
            claims = lists.claims_of(self.client("placement"), consumers)
            held = holdings(instance, claims)
            return held if held["holds"] != NOTHING else held | self._foreign(instance)
        except errors.Unavailable as fault:
            return {"holds": f"unknown: {fault}"}

    def _foreign(self, instance: Instance) -> dict[str, str]:
        """Return the allocations of an instance without a claim; they can only be foreign."""
        try:
            consumer = self.client("placement").call(GetAllocations(consumer_uuid=instance.uuid))
        except errors.ConsumerNotFound:
            return {}
        amounts = in_words(amounts_of(consumer.allocations))
        return {"holds": f"foreign allocations: {amounts}"} if amounts else {}

    def _providers(self, instance: Instance) -> dict[str, str]:
        """Return the names of the providers of attached groups by uuid; those that cannot be read are left out."""
        found: dict[str, str] = {}
        for uuid in {one.provider_uuid for one in instance.attached.values()} - {None}:
            with suppress(errors.Unavailable, errors.ProviderNotFound):
                provider = self.client("placement").call(GetResourceProvider(uuid=str(uuid)))
                found[provider.uuid] = provider.name
        return found


class InstanceDelete(OrderCommand):
    """Delete instances: first their guests, then their allocations. It is safe to repeat the command."""

    arguments = (
        argument("uuid", metavar="INSTANCE", nargs="+", help="Instances (names or uuids)"),
        lambda parser: add_wait(parser, "deleted; the exit status is 1 if any is not"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Send the order, and wait if `--wait` is given."""
        # If the command is repeated, some of them may be deleted already.
        uuids = self.instance_uuids(parsed_args.uuid, or_deleted=True)
        self.order_each(uuids, lambda uuid: self.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid)))
        return INSTANCE_COLUMNS, self.wait(parsed_args, uuids, "deleted", "deleting")
