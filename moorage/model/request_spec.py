"""Requests: the specification of a server and its resource groups."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, structs

from moorage.model.basis import DISK_GB, MEMORY_MB, VCPU, Count, Name, Resources, Suffix, Text, TraitName, Uuid, Value
from moorage.model.moves import ServerGroup

#: The group whose resources may come from several providers of a host's tree, and from pools that share with it.
UNSUFFIXED = ""

#: The most conditions of one kind in a group.
MOST_CONDITIONS = 256
#: The most groups of a request, and the most of its conditions between groups, of one kind.
MOST_GROUPS = 64


class ResourceGroup(Value, frozen=True, kw_only=True):
    """A resource group: a request to one provider or, if unsuffixed, to several providers of a host together.

    The amount of each class comes whole from one provider. A required trait is on any of the providers that serve the
    group; a forbidden one on none of them. Field names are Placement's (API 1.39).
    """

    resources: Resources = {}
    required: Annotated[tuple[TraitName, ...], Meta(max_length=MOST_CONDITIONS)] = ()
    #: At least one trait of each of these.
    any_of: Annotated[
        tuple[Annotated[tuple[TraitName, ...], Meta(min_length=1)], ...], Meta(max_length=MOST_CONDITIONS)
    ] = ()
    forbidden: Annotated[tuple[TraitName, ...], Meta(max_length=MOST_CONDITIONS)] = ()
    #: At least one aggregate of each of these. In the unsuffixed group a provider's root may be the member.
    member_of: Annotated[
        tuple[Annotated[tuple[Uuid, ...], Meta(min_length=1)], ...], Meta(max_length=MOST_CONDITIONS)
    ] = ()
    not_member_of: Annotated[tuple[Uuid, ...], Meta(max_length=MOST_CONDITIONS)] = ()
    #: Only providers of this provider's tree.
    in_tree: Uuid | None = None


class GroupConditions(Value, frozen=True, kw_only=True):
    """The conditions between the resource groups of a request, and on the root of their provider tree."""

    #: Whether suffixed groups must be served by pairwise different providers; required where there are several.
    group_policy: Literal["none", "isolate"] | None = None
    #: For each of these, one of the providers that serve its groups is an ancestor of all others.
    same_subtree: Annotated[
        tuple[Annotated[tuple[Suffix, ...], Meta(min_length=1)], ...], Meta(max_length=MOST_GROUPS)
    ] = ()
    #: The groups of each of these are served by pairwise different providers, whatever the group policy is.
    apart: Annotated[tuple[Annotated[tuple[Suffix, ...], Meta(min_length=1)], ...], Meta(max_length=MOST_GROUPS)] = ()
    root_required: Annotated[tuple[TraitName, ...], Meta(max_length=MOST_CONDITIONS)] = ()
    root_forbidden: Annotated[tuple[TraitName, ...], Meta(max_length=MOST_CONDITIONS)] = ()
    #: The root itself is in at least one aggregate of each of these, and in none of the next field.
    root_member_of: Annotated[
        tuple[Annotated[tuple[Uuid, ...], Meta(min_length=1)], ...], Meta(max_length=MOST_CONDITIONS)
    ] = ()
    root_not_member_of: Annotated[tuple[Uuid, ...], Meta(max_length=10_000)] = ()


class ResourceRequest(GroupConditions, frozen=True, kw_only=True):
    """The resource groups of a request by suffix, and the conditions between them, as in Placement's API."""

    groups: Annotated[dict[Suffix, ResourceGroup], Meta(max_length=MOST_GROUPS)]

    def totals(self) -> dict[str, int]:
        """Return the amounts of all groups together, by resource class."""
        totals: dict[str, int] = {}
        for group in self.groups.values():
            for name, amount in group.resources.items():
                totals[name] = totals.get(name, 0) + amount
        return totals


class Flavor(Value, frozen=True, kw_only=True):
    """The size of a server: amounts in units, MiB and GiB; swap in MiB."""

    name: Name = "custom"
    vcpus: Annotated[int, Meta(ge=1, le=2**20)]
    memory_mb: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap_mb: Count = 0
    extra_specs: Annotated[dict[Name, Text], Meta(max_length=512)] = {}


class Image(Value, frozen=True, kw_only=True):
    """The image that a server starts from."""

    id: Name | None = None
    properties: Annotated[dict[Name, Text], Meta(max_length=512)] = {}


class Destination(Value, frozen=True, kw_only=True):
    """A destination that the caller requests: a host, a node or a cell, or several of them.

    With ``allow_cross_cell_move`` the cell is the server's present one, and other cells are allowed too (Nova's term).
    """

    since: ClassVar = {"node_uuid": "1.9"}
    host: Name | None = None
    #: The name of a node. Its uuid is found too, but only by schedulers of version 1.9 and later.
    node: Name | None = None
    #: The compute node of the host.
    node_uuid: Uuid | None = None
    cell: Uuid | None = None
    allow_cross_cell_move: bool = False


HostNames = Annotated[tuple[Name, ...], Meta(max_length=10_000)]


class RequestSpec(GroupConditions, frozen=True, kw_only=True):
    """A request to the scheduler, the same for each of its instances."""

    project_id: Name
    user_id: Name
    flavor: Flavor
    image: Image = Image()
    is_volume_backed: bool = False
    availability_zone: Name | None = None
    ignore_hosts: HostNames = ()
    #: No other hosts and nodes than these; unlike in Nova, all filters apply to them too.
    force_hosts: HostNames = ()
    force_nodes: HostNames = ()
    requested_destination: Destination | None = None
    #: The server group whose rule applies; only on topics with server groups.
    server_group: ServerGroup | None = None
    scheduler_hints: Annotated[dict[Name, Text], Meta(max_length=64)] = {}
    #: Further groups by suffix. An unsuffixed one adds to the flavor's: its amount of a class replaces the flavor's
    #: amount.
    groups: Annotated[dict[Suffix, ResourceGroup], Meta(max_length=MOST_GROUPS)] = {}

    @property
    def resources(self) -> Resources:
        """The amounts of the unsuffixed group, by the flavor and the unsuffixed group's own amounts, without zeros.

        A request filter removes an amount of the flavor by an amount of zero for its class.

        Disk is root + ephemeral + swap rounded up to GiB, without the root disk for a volume-backed server
        (Nova: ``ResourceRequest.from_request_spec``).
        """
        flavor = self.flavor
        root_gb = 0 if self.is_volume_backed else flavor.root_gb
        amounts = {
            VCPU: flavor.vcpus,
            MEMORY_MB: flavor.memory_mb,
            DISK_GB: root_gb + flavor.ephemeral_gb + math.ceil(flavor.swap_mb / 1024),
        }
        own = self.groups[UNSUFFIXED].resources if UNSUFFIXED in self.groups else {}
        return {name: amount for name, amount in {**amounts, **own}.items() if amount}

    @property
    def resource_request(self) -> ResourceRequest:
        """All resource groups of the request, including the flavor's unless it is empty."""
        unsuffixed = structs.replace(self.groups.get(UNSUFFIXED, ResourceGroup()), resources=self.resources)
        own = {} if unsuffixed == ResourceGroup() else {UNSUFFIXED: unsuffixed}
        conditions = {name: getattr(self, name) for name in GroupConditions.__struct_fields__}
        return ResourceRequest(groups={**own, **self.suffixed}, **conditions)

    @property
    def suffixed(self) -> Mapping[Suffix, ResourceGroup]:
        """The suffixed groups."""
        return {suffix: group for suffix, group in self.groups.items() if suffix != UNSUFFIXED}
