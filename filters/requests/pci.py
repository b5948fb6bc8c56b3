"""The request filter for PCI devices by alias: each device becomes a resource group."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from oslo_config import cfg

from filters.extra_specs import path_of, wrong
from filters.requests.merging import MAX_GROUPS, with_groups
from moorage.model import RequestSpec, ResourceClassName, ResourceGroup, TraitName
from moorage.plugin import Cloud, RequestFilter

#: The suffix of a device's group, followed by the name of its alias and a number.
PCI_GROUP = "_PCI_"
_KEY = "pci_passthrough:alias"
_ID = r"^[0-9a-fA-F]{4}\Z"
_ASKED = re.compile(r"([^:,\s]+)(?::([0-9]{1,3}))?")


class _PciAlias(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A PCI alias: its resource class, or the vendor and product of one (``CUSTOM_PCI_8086_1563``)."""

    #: Short enough for a suffix, with its prefix and number.
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,48}\Z")]
    resource_class: ResourceClassName | None = None
    vendor_id: Annotated[str, Meta(pattern=_ID)] | None = None
    product_id: Annotated[str, Meta(pattern=_ID)] | None = None
    traits: tuple[TraitName, ...] = ()

    @property
    def group(self) -> ResourceGroup:
        """Return the resource group of one such device."""
        name = self.resource_class or f"CUSTOM_PCI_{self.vendor_id}_{self.product_id}".upper()
        return ResourceGroup(resources={name: 1}, required=self.traits)


def _alias(text: str) -> _PciAlias:
    try:
        alias = msgspec.json.decode(text, type=_PciAlias)
    except msgspec.DecodeError as fault:
        raise ValueError(f"pci_alias {text!r:.200}: {fault}") from fault
    ids = {alias.vendor_id is None, alias.product_id is None}
    if ids != {alias.resource_class is not None}:
        raise ValueError(
            f"pci_alias {alias.name}: it has either a resource_class, or both a vendor_id and a product_id"
        )
    return alias


class PciRequestFilter(RequestFilter):
    """Translates ``pci_passthrough:alias`` into groups of one device each, with the class and traits of the alias."""

    options = (
        cfg.MultiStrOpt(
            "pci_alias",
            default=[],
            help="An alias of a kind of PCI device, as JSON: its `name`, which flavors use in pci_passthrough:alias; "
            "its `resource_class`, or else `vendor_id` and `product_id`, which stand for "
            "CUSTOM_PCI_<vendor>_<product>; and a list of required `traits`. May be repeated.",
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        aliases = [_alias(text) for text in settings["pci_alias"]]
        self._groups = {alias.name: alias.group for alias in aliases}
        if len(self._groups) < len(aliases):
            raise ValueError("two of the option pci_alias have the same name")

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with a group for each device.

        :raises InvalidRequest: the extra spec is malformed, or an alias is unknown.
        """
        value = request.flavor.extra_specs.get(_KEY)
        if value is None:
            return request
        groups = self._asked(value)
        return with_groups(request, groups, dict.fromkeys(groups, path_of(_KEY)))

    def _asked(self, value: str) -> dict[str, ResourceGroup]:
        """Parse ``alias:count,alias:count`` into groups; the default count is 1."""
        groups: dict[str, ResourceGroup] = {}
        for part in value.split(","):
            found = _ASKED.fullmatch(part.strip())
            count = int(found[2] or 1) if found else 0
            if found is None or not 1 <= count <= MAX_GROUPS:
                raise wrong(_KEY, f"{part.strip()!r:.60} is no alias with a number from 1 to {MAX_GROUPS}")
            if found[1] not in self._groups:
                known = ", ".join(sorted(self._groups)) or "none"
                raise wrong(_KEY, f"there is no alias {found[1]!r:.60}; the known ones are: {known}")
            # Check before the groups are created: one extra spec can ask for tens of thousands.
            if len(groups) + count > MAX_GROUPS:
                raise wrong(_KEY, f"that makes more than {MAX_GROUPS} resource groups")
            for _ in range(count):
                number = sum(suffix.rpartition("_")[0] == f"{PCI_GROUP}{found[1]}" for suffix in groups)
                groups[f"{PCI_GROUP}{found[1]}_{number}"] = self._groups[found[1]]
        return groups
