"""The sub-commands `moorage resource provider allocation set`, `unset`, `show` and `delete`."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from functools import partial

from cliff.lister import Lister

from moorage import errors, ids
from moorage.cli.arguments import Argument, argument, canonical_uuid
from moorage.cli.command import ShownLines, ShownValue, Table, shown
from moorage.messages import DeleteAllocations, GetAllocations, PutAllocations
from moorage.model import Consumer, ConsumerAllocations, ProviderAmounts, Resources
from moorage.model.allocations import Amounts, amounts_of
from placement_store.commands import argument_types
from placement_store.commands.argument_types import TypedAllocation
from placement_store.commands.placement_command import PlacementCommand, retry_on_stale_view

LOG = logging.getLogger(__name__)

_COLUMNS = ("resource_provider", "generation", "resources", "project_id", "user_id", "consumer_type")


class _ConsumerCommand(PlacementCommand):
    arguments: Sequence[Argument] = (argument("consumer", type=canonical_uuid, help="Consumer (uuid)"),)

    def consumer(self, uuid: str) -> Consumer | None:
        """Return a consumer; null if it does not exist."""
        try:
            return self.placement.call(GetAllocations(consumer_uuid=uuid))
        except errors.ConsumerNotFound:
            return None

    def put(self, uuid: str, before: Consumer | None, amounts: Amounts, described: Mapping[str, str]) -> None:
        """Replace the allocations of a consumer, if its generation is still that of ``before``.

        :param amounts: its new allocations, by the uuid of the provider.
        :param described: its project_id, user_id and consumer_type.
        :raises ConsumerGenerationConflict: the consumer has changed.
        """
        if before is not None and before.claim_id is not None:
            LOG.warning("Consumer %s is placed by a claim: its owner relies on its allocations", uuid)
        wanted = ConsumerAllocations(
            allocations={provider: ProviderAmounts(resources=dict(held)) for provider, held in amounts.items()},
            project_id=described["project_id"],
            user_id=described["user_id"],
            consumer_type=described["consumer_type"],
            consumer_generation=None if before is None else before.generation,
        )
        self.change(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))

    def rows(self, uuid: str) -> Table:
        """Return one row per provider of a consumer's allocations; none if there is no such consumer."""
        if (consumer := self.consumer(uuid)) is None:
            return _COLUMNS, []
        described = shown((consumer.project_id, consumer.user_id, consumer.consumer_type))
        return _COLUMNS, [
            (provider, ShownValue(part.generation), _shown_amounts(part.resources), *described)
            for provider, part in sorted(consumer.allocations.items())
        ]


class AllocationSet(_ConsumerCommand, Lister):
    """Replace all allocations of a consumer in one transaction.

    An existing consumer keeps its project, user and type unless you give new ones. For a new consumer, project and
    user are required.
    """

    arguments = (
        argument(
            "--allocation",
            type=argument_types.allocation,
            repeated=True,
            required=True,
            metavar="rp=PROVIDER,CLASS=AMOUNT[,CLASS=AMOUNT...]",
            help="New allocations from one provider (name or uuid)",
        ),
        argument("--project-id", metavar="PROJECT", help="Project of the consumer"),
        argument("--user-id", metavar="USER", help="User of the consumer"),
        argument("--consumer-type", metavar="TYPE", help="Type of the consumer (default for a new one: INSTANCE)"),
        argument("--generation", type=int, metavar="N", help="Change the consumer only if it has this generation"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Set the allocations and show them.

        :raises ConsumerGenerationConflict: the consumer has changed meanwhile, or is not at the generation named.
        """
        uuid = parsed_args.consumer
        before = self.consumer(uuid)
        named, found = parsed_args.generation, None if before is None else before.generation
        if named not in (None, found):
            raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=named, found=found)
        amounts = self._amounts(parsed_args.allocation)
        try:
            self.put(uuid, before, amounts, _description(before, parsed_args))
        except errors.ConsumerGenerationConflict:
            # No retry: it would replace allocations that somebody else has just written.
            LOG.error("They have changed meanwhile: see `moorage resource provider allocation show`, and decide again")
            raise
        return self.rows(uuid)

    def _amounts(self, arguments: Sequence[TypedAllocation]) -> Amounts:
        """Return the amounts by the uuid of the provider; several arguments for one provider are merged."""
        amounts: dict[str, Resources] = {}
        for allocation in arguments:
            held = amounts.setdefault(self.uuid_of(allocation.provider), {})
            for name, amount in allocation.resources.items():
                if name in held:
                    reason = f"it says twice how much {name} of {allocation.provider} the consumer shall hold"
                    raise errors.InvalidRequest(path="--allocation", reason=reason)
                held[name] = amount
        return amounts


class AllocationUnset(_ConsumerCommand, Lister):
    """Remove allocations of a consumer: by provider, by resource class, by both, or all of them.

    The consumer keeps its project, user and type. The command shows the remaining allocations.
    """

    arguments = (
        argument("--provider", repeated=True, metavar="PROVIDER", help="Remove only allocations from this provider"),
        argument(
            "--resource-class",
            type=argument_types.resource_class,
            repeated=True,
            metavar="CLASS",
            help="Remove only allocations of this resource class",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Remove the allocations and show the others.

        :raises InvalidRequest: it has no such allocations.
        """
        of = {self.uuid_of(provider) for provider in parsed_args.provider} or None
        uuid = parsed_args.consumer
        retry_on_stale_view(partial(self._remove, uuid, of, parsed_args.resource_class or None))
        return self.rows(uuid)

    def _remove(self, uuid: str, of: set[str] | None, classes: Sequence[str] | None) -> None:
        before = self.placement.call(GetAllocations(consumer_uuid=uuid))
        left = _without(before, of, classes)
        if left == amounts_of(before.allocations):
            raise errors.InvalidRequest(path="$", reason=f"consumer {uuid} holds nothing of what is to be taken away")
        described = {name: getattr(before, name) for name in ("project_id", "user_id", "consumer_type")}
        self.put(uuid, before, left, described)


class AllocationShow(_ConsumerCommand, Lister):
    """Show the allocations of a consumer, by provider."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per provider; none for a consumer that does not exist."""
        return self.rows(parsed_args.consumer)


class AllocationDelete(_ConsumerCommand):
    """Release all allocations of a consumer, including those that other clients have added."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete them."""
        self.change(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=parsed_args.consumer))


def _description(before: Consumer | None, given: argparse.Namespace) -> dict[str, str]:
    """Return the project, user and type to write: those of the command line, else the present ones."""
    described = {}
    for name, default in (("project_id", None), ("user_id", None), ("consumer_type", "INSTANCE")):
        value = getattr(given, name)
        if value is None:
            value = getattr(before, name, default)
        if value is None:
            option = f"--{name.replace('_', '-')}"
            raise errors.InvalidRequest(path=option, reason="required, because the consumer does not exist yet")
        described[name] = value
    return described


def _without(consumer: Consumer, of: set[str] | None, classes: Sequence[str] | None) -> dict[str, Resources]:
    """Return a consumer's allocations without those of these providers and classes; null means all of them."""
    left = {
        provider: {
            name: amount
            for name, amount in resources.items()
            if (of is not None and provider not in of) or (classes is not None and name not in classes)
        }
        for provider, resources in amounts_of(consumer.allocations).items()
    }
    return {provider: resources for provider, resources in left.items() if resources}


def _shown_amounts(resources: Resources) -> ShownLines:
    return ShownLines(resources, [", ".join(f"{name}={amount}" for name, amount in resources.items())])
