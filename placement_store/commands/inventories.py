"""The sub-commands `moorage resource provider inventory set`, `class set`, `show`, `list` and `delete`."""

import argparse
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli import lists
from moorage.cli.arguments import argument, keyed
from moorage.cli.command import Record, Table, shown
from moorage.messages import DeleteInventories, DeleteInventory, ListResourceProviders, SetInventories, SetInventory
from moorage.model import Inventories, Inventory, ResourceGroup, ResourceProvider
from placement_store.commands import argument_types
from placement_store.commands.argument_types import INVENTORY_FIELDS, Setting
from placement_store.commands.placement_command import (
    GENERATION,
    PlacementCommand,
    ProviderCommand,
    find,
    retry_on_stale_view,
)

LOG = logging.getLogger(__name__)

_MEANINGS = {
    "allocation_ratio": "Allocation ratio: how many times each unit may be allocated (default: 1.0)",
    "min_unit": "Minimum amount per consumer (default: 1)",
    "max_unit": "Maximum amount per consumer (default: 2147483647)",
    "reserved": "Reserved amount, which cannot be allocated (default: 0)",
    "step_size": "Step size: every amount must be a multiple of it (default: 1)",
    "total": "Total amount",
}
_CLASS = argument("resource_class", type=argument_types.resource_class, help="Resource class (name)")


def amended(before: Mapping[str, Inventory], settings: Sequence[Setting]) -> dict[str, Inventory]:
    """Set these fields of inventories; for a new class, the total must be among them.

    :raises InvalidRequest: a new class has no total.
    """
    described = {name: msgspec.structs.asdict(inventory) for name, inventory in before.items()}
    for class_name, field, value in settings:
        described.setdefault(class_name, {})[field] = value
    for class_name, fields in described.items():
        if "total" not in fields:
            raise errors.InvalidRequest(path="--resource", reason=f"the total of {class_name} is missing")
    return {class_name: Inventory(**fields) for class_name, fields in described.items()}


class InventorySet(PlacementCommand, Lister):
    """Replace all inventories of a resource provider, or with --amend change some of them.

    `--resource VCPU=16 --resource VCPU:max_unit=4` is an inventory of 16 VCPU, of which each
    allocation may have at most 4. Fields: allocation_ratio, min_unit, max_unit, reserved, step_size, total.
    """

    arguments = (
        argument("provider", help="Provider (name or uuid); with --aggregate, the uuid of an aggregate"),
        keyed(
            "--resource",
            type=argument_types.setting,
            metavar="CLASS[:FIELD]=VALUE",
            help="Total, or another field, of an inventory",
        ),
        argument("--aggregate", action="store_true", help="Change every provider of an aggregate"),
        argument("--amend", action="store_true", help="Keep all fields and inventories that are not given"),
        argument("--dry-run", action="store_true", help="Only show the resulting inventories"),
        GENERATION,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Set the inventories and show them.

        :raises MoorageError: an inventory is refused; with --aggregate, the first of the refusals.
        """
        if not parsed_args.aggregate:
            provider = self._set(parsed_args, parsed_args.provider)
            return ("resource_class", *INVENTORY_FIELDS), [shown(cells) for cells in _described(provider.inventories)]
        rows, refusals = [], []
        for uuid in self._members(parsed_args.provider):
            try:
                provider = self._set(parsed_args, uuid)
            except errors.MoorageError as refusal:
                LOG.error("Provider %s: %s", uuid, refusal)
                refusals.append(refusal)
            else:
                rows += [shown((uuid, *cells)) for cells in _described(provider.inventories)]
        if refusals:
            LOG.error("%d providers of the aggregate were left as they are", len(refusals))
            raise refusals[0]
        return ("resource_provider", "resource_class", *INVENTORY_FIELDS), rows

    def _members(self, named: str) -> list[str]:
        if (aggregate := ids.canonical(named)) is None:
            raise errors.InvalidRequest(path="--aggregate", reason=f"{named!r} is not the uuid of an aggregate")
        asked = ListResourceProviders(matching=ResourceGroup(member_of=((aggregate,),)))
        members = lists.providers(self.placement, asked)
        if not members:
            raise errors.NotFound(kind="aggregate", name=aggregate)
        return [provider.uuid for provider in members]

    def _set(self, given: argparse.Namespace, named: str) -> ResourceProvider:
        set_once = partial(self._set_once, given, named)
        return retry_on_stale_view(set_once) if given.generation is None else set_once()

    def _set_once(self, given: argparse.Namespace, named: str) -> ResourceProvider:
        provider = find(self.placement, named)
        after = amended(provider.inventories if given.amend else {}, given.resource)
        generation = provider.generation if given.generation is None else given.generation
        if given.dry_run:
            if generation != provider.generation:
                raise errors.ProviderGenerationConflict(
                    provider_uuid=provider.uuid, named=generation, found=provider.generation
                )
            return msgspec.structs.replace(provider, inventories=after)
        return self.change(
            SetInventories(request_id=ids.fresh(), uuid=provider.uuid, generation=generation, inventories=after)
        )


class InventoryClassSet(ProviderCommand, ShowOne):
    """Create or replace the inventory of one resource class.

    Fields that are not given get their defaults: this also resets `reserved`. To change one field and keep the others,
    use `inventory set PROVIDER --amend`.
    """

    arguments = (
        _CLASS,
        *(
            argument(
                # Both spellings: with hyphens as all of Moorage's options, and with underscores as in osc-placement.
                *dict.fromkeys((f"--{field.replace('_', '-')}", f"--{field}")),
                type=partial(argument_types.field_value, field),
                required=field == "total",
                metavar="VALUE",
                help=_MEANINGS[field],
            )
            for field in INVENTORY_FIELDS
        ),
        GENERATION,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Set the inventory and show it."""
        fields = {name: getattr(parsed_args, name) for name in INVENTORY_FIELDS}
        provider = self.change(
            SetInventory(
                request_id=ids.fresh(),
                uuid=self.uuid_of(parsed_args.provider),
                resource_class=parsed_args.resource_class,
                inventory=Inventory(**{name: value for name, value in fields.items() if value is not None}),
                generation=parsed_args.generation,
            )
        )
        return INVENTORY_FIELDS, shown(_fields(provider.inventories[parsed_args.resource_class]))


class InventoryShow(ProviderCommand, ShowOne):
    """Show the inventory and the usage of one resource class."""

    only_reads = True
    arguments = (_CLASS,)

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the inventory.

        :raises InventoryNotFound: it has no inventory of that class.
        """
        provider = find(self.placement, parsed_args.provider)
        class_name = parsed_args.resource_class
        if class_name not in provider.inventories:
            raise errors.InventoryNotFound(provider_uuid=provider.uuid, name=class_name)
        cells = (*_fields(provider.inventories[class_name]), provider.used.get(class_name, 0))
        return (*INVENTORY_FIELDS, "used"), shown(cells)


class InventoryList(ProviderCommand, Lister):
    """List the inventories of a resource provider with their usage."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per class."""
        provider = find(self.placement, parsed_args.provider)
        rows = [shown((*cells, provider.used.get(cells[0], 0))) for cells in _described(provider.inventories)]
        return ("resource_class", *INVENTORY_FIELDS, "used"), rows


class InventoryDelete(ProviderCommand):
    """Delete the inventory of one resource class, or all inventories, of a provider; they must be unused."""

    arguments = (
        argument(
            "--resource-class",
            type=argument_types.resource_class,
            metavar="CLASS",
            help="Delete only the inventory of this class (default: all)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the inventories."""
        uuid = self.uuid_of(parsed_args.provider)
        if parsed_args.resource_class is None:
            self.change(DeleteInventories(request_id=ids.fresh(), uuid=uuid))
        else:
            self.change(DeleteInventory(request_id=ids.fresh(), uuid=uuid, resource_class=parsed_args.resource_class))


def _fields(inventory: Inventory) -> tuple[Any, ...]:
    return tuple(getattr(inventory, name) for name in INVENTORY_FIELDS)


def _described(inventories: Inventories) -> list[tuple[Any, ...]]:
    """Return the table cells of each class, by name."""
    return [(name, *_fields(inventory)) for name, inventory in sorted(inventories.items())]
