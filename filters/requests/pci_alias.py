"""Parsing of PCI aliases in the configuration: a name for flavors, with a resource class and traits."""

from typing import Annotated

import msgspec
from msgspec import Meta

from moorage.model import ResourceClassName, ResourceGroup, TraitName

_ID = r"^[0-9a-fA-F]{4}\Z"


class PciAlias(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


def read(text: str) -> PciAlias:
    """Parse an alias from JSON.

    :raises ValueError: it is not valid.
    """
    try:
        alias = msgspec.json.decode(text, type=PciAlias)
    except msgspec.DecodeError as fault:
        raise ValueError(f"pci_alias {text!r:.200}: {fault}") from fault
    ids = {alias.vendor_id is None, alias.product_id is None}
    if ids != {alias.resource_class is not None}:
        raise ValueError(
            f"pci_alias {alias.name}: it has either a resource_class, or both a vendor_id and a product_id"
        )
    return alias
