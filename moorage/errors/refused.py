"""Refusals because of missing resources or a rule: the caller must change the request or its destination."""

from collections.abc import Mapping, Sequence

from moorage.errors.basis import Json, MoorageError


class PlacementRefused(MoorageError, code="moorage.refused"):
    """The request cannot be placed."""


class NoValidHost(PlacementRefused, code="moorage.no_valid_host"):
    """No valid host was found for {instances} instance(s): {summary}.

    The explanation counts, for each filter, the hosts that it removed, and names the nearest misses. The scheduler
    raises it only after its host view has caught up with the store and it has decided once more.
    """

    instances: int
    summary: str
    explanation: Mapping[str, Json]


class MaxRetriesExceeded(PlacementRefused, code="moorage.max_retries_exceeded"):
    """The build of instance {instance_uuid} failed on every host that was tried: {summary}."""

    instance_uuid: str
    summary: str
    attempts: Sequence[Mapping[str, Json]]


class CapacityExceeded(PlacementRefused, code="moorage.capacity_exceeded"):
    """There is not enough room on {count} inventories, the first of them {resource_class} of provider {provider_uuid}.

    ``refusals`` lists each of them as ``{provider_uuid, resource_class, asked, free, reason}``.
    """

    provider_uuid: str
    resource_class: str
    count: int
    refusals: Sequence[Mapping[str, Json]]


class CannotCarryOver(PlacementRefused, code="moorage.cannot_carry_over"):
    """Consumer {consumer_uuid} has {count} foreign allocations on providers that this move would leave.

    ``amounts`` lists each of them as ``{provider_uuid, resource_class, amount}``. Remove them first, or move with
    ``--drop-extras``.
    """

    consumer_uuid: str
    count: int
    amounts: Sequence[Mapping[str, Json]]


class GroupRuleRefused(PlacementRefused, code="moorage.group_rule_refused"):
    """The {policy} rule of server group {group_uuid} does not allow {consumer_uuid} on {provider_uuid}: {reason}."""

    group_uuid: str
    policy: str
    consumer_uuid: str
    provider_uuid: str
    reason: str


class InvalidInventory(PlacementRefused, code="moorage.invalid_inventory"):
    """The inventory of {resource_class} on provider {provider_uuid} is invalid: {reason}."""

    provider_uuid: str
    resource_class: str
    reason: str


class InventoryInUse(PlacementRefused, code="moorage.inventory_in_use"):
    """The inventory of {resource_class} on provider {provider_uuid} is in use and cannot be removed."""

    provider_uuid: str
    resource_class: str


class ProviderInUse(PlacementRefused, code="moorage.provider_in_use"):
    """The resource provider {provider_uuid} is in use: it can be neither deleted nor moved to another tree.

    It cannot be deleted while it has allocations. It cannot be moved to or from the tree of a claim's host while the
    claim's consumer has allocations from it or from a provider below it, or while it is the compute node of a host. The
    host of a claim can be neither deleted nor moved below another provider, even if the claim only has allocations from
    pools.
    """

    provider_uuid: str


class ProviderHasChildren(ProviderInUse, code="moorage.provider_has_children"):
    """The resource provider {provider_uuid} has children and cannot be deleted before they are."""


class ImpossibleDeal(PlacementRefused, code="moorage.impossible_deal"):
    """The allocations of consumer {consumer_uuid} from {provider_uuid} fit none of their new places: {reason}."""

    consumer_uuid: str
    provider_uuid: str
    reason: str


class SearchBoundReached(PlacementRefused, code="moorage.search_bound_reached"):
    """The search for {what} stopped after {steps} steps; it is unknown whether there is a solution: {narrow}.

    All searches of one request share one budget of steps and processor time. The same request would use it up again.
    """

    what: str
    steps: int
    narrow: str = "ask for fewer suffixed groups, or name in_tree, member_of or traits that fewer providers have"


class BuildFailed(PlacementRefused, code="moorage.build_failed"):
    """The guest of instance {instance_uuid} could not be built on host {host}: {reason}."""

    instance_uuid: str
    host: str
    reason: str


class BuildImpossible(BuildFailed, code="moorage.build_failed.impossible"):
    """The guest of instance {instance_uuid} cannot be built on host {host}, nor on any other: {reason}.

    A driver raises it if the cause is the request itself, for example the image. No other host is tried.
    """


class GuestActionFailed(PlacementRefused, code="moorage.guest_action_failed"):
    """Host {host} could not {action} the guest of instance {instance_uuid}: {reason}."""

    instance_uuid: str
    host: str
    action: str
    reason: str
