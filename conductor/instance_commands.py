"""What an operator does with instances, and asks of them."""

import argparse
import getpass
from collections.abc import Sequence
from typing import Any

import msgspec
from cliff.lister import Lister
from cliff.show import ShowOne

from conductor.instance_timeline import explained, holdings, migrations_of, timeline
from conductor.ordering import INSTANCE_COLUMNS, Ordering, add_request_id, add_wait, instance_row
from moorage import errors, group_options, ids
from moorage.commands import Configured, shown
from moorage.messages import (
    MAX_INSTANCES,
    BuildInstances,
    DeleteInstance,
    GetServerGroup,
    ListClaims,
    ListInstances,
    ShowInstance,
)
from moorage.model import Flavor, Instance, RequestSpec, ServerGroup


class InstanceBuild(Ordering):
    """Order instances to be built, all placed in one decision.

    Further resource groups are asked for in the words of `moorage allocation candidate list`: what follows `--group
    SUFFIX` is served by one provider of the host. What stands before the first `--group` is asked of the instance's
    own group, beside its flavor.

    Repeated with the same --request-id, it orders nothing new and shows the same instances.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--vcpus", type=int, required=True, metavar="N", help="VCPU of each instance")
        add("--memory-mb", type=int, required=True, metavar="MIB", help="MEMORY_MB of each instance")
        add("--root-gb", type=int, default=0, metavar="GIB", help="its root disk; default: 0")
        add("--ephemeral-gb", type=int, default=0, metavar="GIB", help="its ephemeral disk; default: 0")
        add("--swap-mb", type=int, default=0, metavar="MIB", help="its swap; default: 0")
        add("--count", type=int, default=1, metavar="N", help="how many; default: 1")
        add("--availability-zone", metavar="NAME", help="where; default: in any zone")
        add("--host", metavar="NAME", help="on this host and no other")
        add("--server-group", metavar="UUID", help="the group whose rule binds them; see moorage server-group create")
        add("--project", default="default", metavar="NAME", help="whose; default: default")
        add("--user", default=getpass.getuser(), metavar="NAME", help="by whom; default: the system's user")
        group_options.add_request_words(parser)
        add_request_id(parser)
        add_wait(parser, "built or in error; the exit status is 1 if any is in error or still being built")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Order, and wait if asked to."""
        count = parsed_args.count
        if not 1 <= count <= MAX_INSTANCES:
            raise errors.InvalidRequest(path="--count", reason=f"from 1 to {MAX_INSTANCES} instances can be ordered")
        request_id = self.named(parsed_args)
        uuids = tuple(ids.derived(request_id, "instance", number) for number in range(count))
        spec = msgspec.structs.replace(_spec(parsed_args), server_group=self._group(parsed_args.server_group))
        self.order(BuildInstances(request_id=request_id, request_spec=spec, instance_uuids=uuids))
        return INSTANCE_COLUMNS, self.wait(parsed_args, uuids, "active", "building", ends=("error",))

    def _group(self, uuid: str | None) -> ServerGroup | None:
        return None if uuid is None else self.client("placement").call(GetServerGroup(uuid=uuid)).group


class InstanceList(Configured, Lister):
    """List instances in the order they were asked for."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--project", metavar="NAME", help="those of one project")
        parser.add_argument("--deleted", action="store_true", help="deleted ones too")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Ask the super conductor."""
        message = ListInstances(project_id=parsed_args.project, deleted=parsed_args.deleted)
        return INSTANCE_COLUMNS, [instance_row(instance) for instance in self.client("conductor").call(message)]


class InstanceShow(Configured, ShowOne):
    """Show an instance, with each attempt to build it: on which host, and how it went."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("uuid", help="the instance")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Ask the super conductor."""
        instance = self.client("conductor").call(ShowInstance(instance_uuid=parsed_args.uuid))
        flavor = instance.flavor
        fields: dict[str, Any] = {
            "uuid": instance.uuid,
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
        fields |= timeline(instance) | self._held(instance)
        if instance.explanation is not None:
            fields |= explained(instance.explanation)
        return tuple(fields), shown(fields.values())

    def _held(self, instance: Instance) -> dict[str, Any]:
        """Return who holds what for the instance, as far as the placement role answers: itself, and its residues."""
        attempts = {attempt.attempt_id for attempt in instance.attempts}
        consumers = {instance.uuid, *attempts, *migrations_of(instance)}
        try:
            claims = self.client("placement").call(ListClaims(consumer_uuids=tuple(sorted(consumers)), residues=True))
        except errors.Unavailable as fault:
            return {"holds": f"unknown: {fault}"}
        return holdings(instance, claims)


class InstanceDelete(Ordering):
    """Order instances to be deleted: the guest first, then what it holds. Ordering it twice does no harm."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("uuid", nargs="+", help="the instances")
        add_wait(parser, "deleted; the exit status is 1 if any is not")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Order, and wait if asked to."""
        conductor = self.client("conductor")
        for uuid in parsed_args.uuid:
            conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))
        return INSTANCE_COLUMNS, self.wait(parsed_args, parsed_args.uuid, "deleted", "deleting")


def _spec(given: argparse.Namespace) -> RequestSpec:
    return RequestSpec(
        project_id=given.project,
        user_id=given.user,
        flavor=Flavor(
            vcpus=given.vcpus,
            memory_mb=given.memory_mb,
            root_gb=given.root_gb,
            ephemeral_gb=given.ephemeral_gb,
            swap_mb=given.swap_mb,
        ),
        availability_zone=given.availability_zone,
        force_hosts=() if given.host is None else (given.host,),
        groups=dict(group_options.groups(given)),
        **group_options.between(given),
    )
