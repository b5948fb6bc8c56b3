"""What an operator does with instances, and asks of them."""

import argparse
import getpass
import logging
from collections.abc import Sequence
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from conductor.instance_timeline import holdings, timeline
from conductor.waiting import wait_for
from moorage import errors, group_options, ids
from moorage.commands import Configured, shown
from moorage.messages import MAX_INSTANCES, BuildInstances, DeleteInstance, ListClaims, ListInstances, ShowInstance
from moorage.model import Flavor, Instance, RequestSpec

LOG = logging.getLogger(__name__)

_COLUMNS = ("uuid", "state", "cell", "host", "attempts", "reason")
#: Seconds that `--wait` waits unless told: longer than any build of a healthy cloud. Arbitrary.
_WAIT_SECONDS = 600.0


class _Ordering(Configured, Lister):
    """A command that orders something for instances, and may wait until it has come."""

    def wait(self, given: argparse.Namespace, uuids: Sequence[str], state: str, what: str) -> list[tuple[Any, ...]]:
        """Return the instances as rows, at once or when they are ``state`` or can no longer become so."""
        ends = {state, "error"} if state == "active" else {state}
        seconds = given.wait_timeout if given.wait else 0.0
        instances = wait_for(self.client("conductor"), uuids, lambda seen: seen.state in ends, what, seconds)
        self._failed = given.wait and any(instance.state != state for instance in instances)
        return [_row(instance) for instance in instances]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the instances; tell by the exit status whether all that was waited for has come."""
        self._failed = False
        return super().run(parsed_args) or int(self._failed)


class InstanceBuild(_Ordering):
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
        add("--project", default="default", metavar="NAME", help="whose; default: default")
        add("--user", default=getpass.getuser(), metavar="NAME", help="by whom; default: the system's user")
        group_options.add_request_words(parser)
        add("--request-id", metavar="ID", help="what the request is called on every log line; default: a new uuid")
        _add_wait(parser, "built or in error; the exit status is 1 if any is in error or still being built")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Order, and wait if asked to."""
        count = parsed_args.count
        if not 1 <= count <= MAX_INSTANCES:
            raise errors.InvalidRequest(path="--count", reason=f"from 1 to {MAX_INSTANCES} instances can be ordered")
        request_id = parsed_args.request_id or ids.fresh()
        uuids = tuple(ids.derived(request_id, "instance", number) for number in range(count))
        conductor = self.client("conductor")
        order = BuildInstances(request_id=request_id, request_spec=_spec(parsed_args), instance_uuids=uuids)
        try:
            conductor.call(order)
        except (errors.NoReply, errors.StoreUnavailable):
            # It may be on record all the same; the same order once more finds out.
            LOG.error("Whether it is ordered is unknown. Repeat it with --request-id %s", request_id)
            raise
        return _COLUMNS, self.wait(parsed_args, uuids, "active", "building")


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
        return _COLUMNS, [_row(instance) for instance in self.client("conductor").call(message)]


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
            for found in instance.explanation.filters:
                fields[f"filter_{found.name}"] = f"removed {found.removed} of {found.hosts} hosts"
            for number, miss in enumerate(instance.explanation.nearest_misses, start=1):
                fields[f"miss_{number}"] = (
                    f"{miss.host}: {miss.resource_class}, {miss.asked} asked, {miss.free:g} free ({miss.reason})"
                )
        return tuple(fields), shown(fields.values())

    def _held(self, instance: Instance) -> dict[str, Any]:
        """Return who holds what for the instance, as far as the placement role answers: itself, and its residues."""
        consumers = (instance.uuid, *(attempt.attempt_id for attempt in instance.attempts))
        try:
            claims = self.client("placement").call(ListClaims(consumer_uuids=consumers, residues=True))
        except errors.Unavailable as fault:
            return {"holds": f"unknown: {fault}"}
        return holdings(instance, claims)


class InstanceDelete(_Ordering):
    """Order instances to be deleted: the guest first, then what it holds. Ordering it twice does no harm."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("uuid", nargs="+", help="the instances")
        _add_wait(parser, "deleted; the exit status is 1 if any is not")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        """Order, and wait if asked to."""
        conductor = self.client("conductor")
        for uuid in parsed_args.uuid:
            conductor.call(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))
        return _COLUMNS, self.wait(parsed_args, parsed_args.uuid, "deleted", "deleting")


def _add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--wait", action="store_true", help=f"wait until all are {what}")
    parser.add_argument(
        "--wait-timeout",
        type=float,
        default=_WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait; default: {_WAIT_SECONDS:g}",
    )


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


def _row(instance: Instance) -> tuple[Any, ...]:
    attempts = [attempt.host for attempt in instance.attempts]
    return shown((instance.uuid, instance.state, instance.cell, instance.host, attempts, instance.reason))
