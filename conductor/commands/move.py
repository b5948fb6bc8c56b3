"""The operator's commands to move, resize, evacuate, shelve and rebuild servers, and to end their migrations."""

import argparse
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from conductor.commands.migration import MIGRATION_COLUMNS, migration_row
from conductor.commands.order import BASE_REQUEST_ID, INSTANCE_COLUMNS, OrderCommand, add_wait
from moorage import errors, ids
from moorage.cli import request_arguments
from moorage.cli.arguments import Argument, argument
from moorage.cli.command import Table
from moorage.messages import (
    AbortMigration,
    ConfirmMigration,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    ShowInstance,
    ShowMigration,
    UnshelveInstance,
)
from moorage.messages.basis import OrderAfter
from moorage.messages.conductor import EndOfMigration
from moorage.model import Flavor, Image, Instance, Migration

LOG = logging.getLogger(__name__)

#: The states of a migration that has ended without a move.
_NOT_MOVED = ("reverted", "failed", "ended")
_HOST = argument("--host", metavar="NAME", help="Destination host (default: chosen by the scheduler)")


class _ServerOrder(OrderCommand):
    """A command that gives an order for each of some servers, and shows them."""

    #: The order, the state that `--wait` waits for, and the states from which it cannot be reached any more.
    kind: ClassVar[type[OrderAfter[Any] | EndOfMigration]]
    comes_to: ClassVar[str] = "active"
    ends: ClassVar[tuple[str, ...]] = ("error", "deleted")

    arguments: Sequence[Argument] = (
        argument("uuid", metavar="INSTANCE", nargs="+", help="Instances (names or uuids)"),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        BASE_REQUEST_ID(parser)
        add_wait(parser, f"{self.comes_to}; the exit status is 1 if any is not")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Send the orders, and wait if `--wait` is given."""
        request_id = self.named(parsed_args)
        # Resolve all names first: an unknown or ambiguous name is refused before anything is ordered.
        uuids = self.instance_uuids(parsed_args.uuid)

        def order(uuid: str) -> Any:
            order_id, content = ids.derived(request_id, "order", uuid), self.content(parsed_args, uuid)
            return self.order(self.kind(request_id=order_id, instance_uuid=uuid, **content))

        return self.result(parsed_args, uuids, self.order_each(uuids, order))

    def content(self, _given: argparse.Namespace, _uuid: str) -> dict[str, Any]:
        """Return the further content of the order for one server."""
        return {}

    def result(self, given: argparse.Namespace, uuids: Sequence[str], _answers: Sequence[Any]) -> Table:
        """Wait if `--wait` is given, and return what is shown."""
        return INSTANCE_COLUMNS, self.wait(given, uuids, self.comes_to, "waiting", self.ends)


class _MoveOrder(_ServerOrder):
    """A command that orders a move of each of some servers, and shows the migrations."""

    comes_to = "moved"

    arguments: Sequence[Argument] = (
        _HOST,
        argument(
            "--drop-extras",
            action="store_true",
            help="Drop allocations that other clients have added to the instance, on the providers that it leaves",
        ),
    )

    def content(self, given: argparse.Namespace, _uuid: str) -> dict[str, Any]:
        """Return the further content of the order for one server."""
        return {"host": given.host, "drop_extras": given.drop_extras}

    def result(self, given: argparse.Namespace, _uuids: Sequence[str], answers: Sequence[Ordered]) -> Table:
        """Wait if `--wait` is given, and return the migrations."""
        migrations = [answer.migration_uuid for answer in answers]

        def look(uuid: str) -> Migration:
            return self.client("conductor").call(ShowMigration(uuid=uuid))

        # A migration that is confirmed automatically is in state moved for a moment.
        reached = ("moved", "confirmed") if self.comes_to == "moved" else ("confirmed",)
        seen = self.waited(given, migrations, look, reached, (*reached, *_NOT_MOVED), "moving")
        return MIGRATION_COLUMNS, [migration_row(one) for one in seen]


class InstanceMigrate(_MoveOrder):
    """Stop instances and move them to other hosts; each then waits to be confirmed or reverted."""

    kind = MigrateInstance


class InstanceLiveMigrate(_MoveOrder):
    """Move running instances to other hosts."""

    kind = LiveMigrateInstance
    comes_to = "confirmed"


class InstanceEvacuate(_MoveOrder):
    """Start instances of a failed host on other hosts; first run `moorage host set NAME --forced-down`.

    Their resources on the failed host stay allocated until it has returned and cleaned up, or is deleted.
    """

    kind = EvacuateInstance
    comes_to = "confirmed"


class InstanceResize(_MoveOrder):
    """Resize instances, on their own or other hosts; each then waits to be confirmed or reverted.

    Sizes and extra specs that are not given remain unchanged.
    """

    kind = ResizeInstance

    arguments = (
        argument("--vcpus", type=int, metavar="N", help="New VCPU"),
        argument("--memory-mb", type=int, metavar="MIB", help="New MEMORY_MB"),
        argument("--root-gb", type=int, metavar="GIB", help="New size of the root disk"),
        argument("--ephemeral-gb", type=int, metavar="GIB", help="New size of the ephemeral disk"),
        argument("--swap-mb", type=int, metavar="MIB", help="New size of the swap disk"),
        request_arguments.pairs("--extra-spec", "New extra spec of the flavor"),
        argument(
            "--unset-extra-spec", repeated=True, metavar="KEY", help="Key of an extra spec to remove from the flavor"
        ),
    )

    def content(self, given: argparse.Namespace, uuid: str) -> dict[str, Any]:
        """Return the further content of the order for one server, with its new flavor."""
        names = ("vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb")
        sizes = {name: value for name in names if (value := getattr(given, name)) is not None}
        if not (sizes or given.extra_spec or given.unset_extra_spec):
            raise errors.InvalidRequest(path="--vcpus", reason="give at least one part of the new size")
        instance = self.client("conductor").call(ShowInstance(instance_uuid=uuid))
        current: Flavor = instance.flavor
        # With its own request id the order may be a repetition: the first one may have removed the keys.
        removable = given.unset_extra_spec if given.request_id else current.extra_specs
        extra_specs = _changed(current.extra_specs, given.extra_spec, given.unset_extra_spec, removable)
        flavor = msgspec.structs.replace(current, **sizes, extra_specs=extra_specs)
        # It would be stopped and moved for nothing. With its own request id the order may be a repetition, as above.
        if flavor == current and instance.state == "active" and not given.request_id:
            raise errors.InvalidRequest(path="--vcpus", reason=f"instance {uuid} has this size and these extra specs")
        return super().content(given, uuid) | {"flavor": flavor, "last_order": instance.last_order}


def _changed(
    extra_specs: Mapping[str, str], given: Sequence[tuple[str, str]], unset: Sequence[str], removable: Collection[str]
) -> dict[str, str]:
    """Return the extra specs, updated with those ``given`` and without the keys of ``unset``.

    :raises InvalidRequest: a key of ``unset`` is not in ``removable``, or is given too.
    """
    for key in unset:
        if key not in removable or key in dict(given):
            why = "given, too" if key in dict(given) else "not there"
            raise errors.InvalidRequest(path="--unset-extra-spec", reason=f"extra spec {key} is {why}")
    return {key: value for key, value in extra_specs.items() if key not in unset} | dict(given)


class InstanceConfirm(_ServerOrder):
    """Confirm moves: destroy the guests on the source hosts and release their resources.

    A confirmation stays pending while a host does not answer, and if another client has changed the allocations
    meanwhile and `[conductor] consumer_conflict_policy` is `fail`. Run the command again to retry it immediately. It
    does not wait for a host that is forced down: resources there stay allocated until the host has returned and cleaned
    up, or is deleted.
    """

    kind = ConfirmMigration


class InstanceRevert(_ServerOrder):
    """Revert moves: take the instances back to their source hosts and former sizes.

    A revert stays pending if another client has changed the allocations meanwhile and `[conductor]
    consumer_conflict_policy` is `fail`. Run the command again to retry it immediately. If the source host has no guest
    to return to, or does not answer, the revert is given up: the instance stays `moved`, and can be confirmed.
    """

    kind = RevertMigration

    def is_given_up(self, one: Instance) -> bool:
        """Return whether the migration waits again to be confirmed or reverted; log why."""
        if one.state != "moved" or one.migration_uuid is None:
            return False
        migration = self.client("conductor").call(ShowMigration(uuid=one.migration_uuid))
        is_given_up: bool = migration.state == "moved"
        if is_given_up:
            LOG.error("The revert of instance %s is given up: %s", one.uuid, migration.reason)
        return is_given_up


class InstanceAbort(_ServerOrder):
    """Abort live migrations in progress: the instances stay on their source hosts.

    This also frees instances that a former release has left `moving` after their migrations had `failed`.
    """

    kind = AbortMigration


class InstanceShelve(_ServerOrder):
    """Shelve instances: remove them from their hosts and release their resources, but keep their records.

    Evacuate instances on hosts that are forced down instead.
    """

    kind = ShelveInstance
    comes_to = "shelved"


class InstanceUnshelve(_ServerOrder):
    """Unshelve instances: place each of them again, in its cell."""

    kind = UnshelveInstance
    ends = ("shelved", "error", "deleted")

    arguments = (_HOST,)

    def content(self, given: argparse.Namespace, _uuid: str) -> dict[str, Any]:
        """Return the host, if one is given."""
        return {"host": given.host}


class InstanceRebuild(_ServerOrder):
    """Rebuild instances on their hosts from another image, with unchanged allocations."""

    kind = RebuildInstance

    arguments = (argument("--image", required=True, metavar="ID", help="Image (id)"),)

    def content(self, given: argparse.Namespace, _uuid: str) -> dict[str, Any]:
        """Return the image."""
        return {"image": Image(id=given.image)}
