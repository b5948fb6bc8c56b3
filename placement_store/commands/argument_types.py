"""Types of command line arguments for resources: amounts, fields of inventories, allocations, names.

Each function is an argparse type: it takes the text of an argument, returns its value, and raises ArgumentTypeError.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from moorage.cli.arguments import converted
from moorage.model import Amount, Inventory, Name, ResourceClassName, Resources, ServerGroup, TraitName

#: The fields of an inventory in the order of osc-placement's columns.
INVENTORY_FIELDS = ("allocation_ratio", "min_unit", "max_unit", "reserved", "step_size", "total")


class Setting(NamedTuple):
    """One field of the inventory of one class, as `VCPU:max_unit=4`; `VCPU=16` is the total."""

    resource_class: str
    field: str
    value: float


class TypedAllocation(NamedTuple):
    """The allocations of a consumer from one provider, as `rp=PROVIDER,VCPU=2,MEMORY_MB=512`."""

    provider: str
    resources: Resources


def database_url(text: str) -> str:
    """Check the URL of a database, whose driver must be installed."""
    # Imported here, because most commands open no database.
    from sqlalchemy.exc import ArgumentError

    from moorage.db import hosts

    try:
        hosts.parse(text).get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError):
        # Without the text itself: it may contain a password.
        raise argparse.ArgumentTypeError("not the URL of a database that can be opened here") from None
    return text


def _name_of(kind: Any, refusal: str) -> Callable[[str], str]:
    """Return a function that checks the form of a name; what it names need not exist."""
    return lambda text: str(converted(text, kind, f"{text!r} {refusal}"))


resource_class = _name_of(ResourceClassName, "is no resource class: A-Z, 0-9 and _ are its letters")
trait = _name_of(TraitName, "is no trait: A-Z, 0-9 and _ are its letters")
name = _name_of(Name, "is no name: it has 1 to 255 characters")


def members_on_host(text: str) -> int:
    """Parse the maximum of members of a server group on one host."""
    kind = next(field.type for field in msgspec.structs.fields(ServerGroup) if field.name == "max_server_per_host")
    return int(converted(text, kind, f"{text!r} is not a number from 1 to 1000"))


def field_value(field: str, text: str) -> float:
    """Parse the value of a field of an inventory."""
    what = "a number more than 0" if field == "allocation_ratio" else "a whole number that such a field may have"
    value: float = converted(text, _FIELD_TYPES[field], f"{field} of {text!r}: it takes {what}")
    return value


def setting(text: str) -> Setting:
    """Parse one field of an inventory, `CLASS=TOTAL` or `CLASS:FIELD=VALUE`."""
    name, equals, value = text.partition("=")
    class_name, colon, field = name.partition(":")
    field = field if colon else "total"
    if not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not CLASS=TOTAL or CLASS:FIELD=VALUE")
    if field not in INVENTORY_FIELDS:
        raise argparse.ArgumentTypeError(f"an inventory has no {field!r}: its fields are {', '.join(INVENTORY_FIELDS)}")
    return Setting(resource_class(class_name), field, field_value(field, value))


def allocation(text: str) -> TypedAllocation:
    """Parse the allocations from one provider, `rp=PROVIDER,CLASS=AMOUNT[,...]`."""
    provider = ""
    resources: Resources = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name in ("rp", *resources) and (name != "rp" or provider):
            raise argparse.ArgumentTypeError(f"{text!r} has {name} twice")
        if name == "rp":
            provider = value
        else:
            resources[resource_class(name)] = converted(
                value, Amount, f"{part!r} is not CLASS=AMOUNT, with an amount of 1 or more"
            )
    if not provider or not resources:
        raise argparse.ArgumentTypeError(f"{text!r} is not rp=PROVIDER,CLASS=AMOUNT[,CLASS=AMOUNT...]")
    return TypedAllocation(provider, resources)


_FIELD_TYPES = {field.name: field.type for field in msgspec.structs.fields(Inventory)}
