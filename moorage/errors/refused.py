"""Refusals because of missing resources or a rule: the caller must change the request or its destination."""

from collections.abc import Mapping, Sequence

from moorage.errors.basis import Json, MoorageError


class PlacementRefused(MoorageError):
    """The request cannot be placed."""

    code = "moorage.refused"


class NoValidHost(PlacementRefused):
    """No valid host was found for {instances} instance(s): {summary}.

    The explanation counts, for each filter, the hosts that it removed, and names the nearest misses. The scheduler
    raises it only after its host view has caught up with the store and it has decided once more.
    """

    code = "moorage.no_valid_host"
    instances: int
    summary: str
    explanation: Mapping[str, Json]


class MaxRetriesExceeded(PlacementRefused):
    """The build of instance {instance_uuid} failed on every host that was tried: {summary}."""

    code = "moorage.max_retries_exceeded"
    instance_uuid: str
    summary: str
    attempts: Sequence[Mapping[str, Json]]


class CapacityExceeded(PlacementRefused):
    """There is not enough room on {count} inventories, the first of them {resource_class} of provider {provider_uuid}.

    ``refusals`` lists each of them as ``{provider_uuid, resource_class, asked, free, reason}``.
    """

    code = "moorage.capacity_exceeded"
    provider_uuid: str
    resource_class: str
    count: int
    refusals: Sequence[Mapping[str, Json]]


class CannotCarryOver(PlacementRefused):
    """Consumer {consumer_uuid} has {count} foreign allocations on providers that this move would leave.

    ``amounts`` lists each of them as ``{provider_uuid, resource_class, amount}``. Remove them first, or move with
    ``--drop-extras``.
    """

    code = "moorage.cannot_carry_over"
    consumer_uuid: str
    count: int
    amounts: Sequence[Mapping[str, Json]]


class GroupRuleRefused(PlacementRefused):
    """The {policy} rule of server group {group_uuid} does not allow {consumer_uuid} on {provider_uuid}: {reason}."""

    code = "moorage.group_rule_refused"
    group_uuid: str
    policy: str
    consumer_uuid: str
    provider_uuid: str
    reason: str


class InvalidInventory(PlacementRefused):
    """The inventory of {resource_class} on provider {provider_uuid} is invalid: {reason}."""

    code = "moorage.invalid_inventory"
    provider_uuid: str
    resource_class: str
    reason: str


class InventoryInUse(PlacementRefused):
    """The inventory of {resource_class} on provider {provider_uuid} is in use and cannot be removed."""

    code = "moorage.inventory_in_use"
    provider_uuid: str
    resource_class: str


class ProviderInUse(PlacementRefused):
    """The resource provider {provider_uuid} is in use: it can be neither deleted nor moved to another tree.

    It cannot be deleted while it has allocations. It cannot be moved to or from the tree of a claim's host while the
    claim's consumer has allocations from it or from a provider below it, or while it is the compute node of a host.
    """

    code = "moorage.provider_in_use"
    provider_uuid: str


class ProviderHasChildren(ProviderInUse):
    """The resource provider {provider_uuid} has children and cannot be deleted before they are."""

    code = "moorage.provider_has_children"


class ImpossibleDeal(PlacementRefused):
    """The allocations of consumer {consumer_uuid} from {provider_uuid} fit none of their new places: {reason}."""

    code = "moorage.impossible_deal"
    consumer_uuid: str
    provider_uuid: str
    reason: str


class SearchBoundReached(PlacementRefused):
    """The search for {what} stopped after {steps} steps; it is unknown whether there is a solution: {narrow}.

    All searches of one request share one budget of steps and processor time. The same request would use it up again.
    """

    code = "moorage.search_bound_reached"
    what: str
    steps: int
    narrow: str = "ask for fewer suffixed groups, or name in_tree, member_of or traits that fewer providers have"


class BuildFailed(PlacementRefused):
    """The guest of instance {instance_uuid} could not be built on host {host}: {reason}."""

    code = "moorage.build_failed"
    instance_uuid: str
    host: str
    reason: str


class BuildImpossible(BuildFailed):
    """The guest of instance {instance_uuid} cannot be built on host {host}, nor on any other: {reason}.

    A driver raises it if the cause is the request itself, for example the image. No other host is tried.
    """

    code = "moorage.build_failed.impossible"


class GuestActionFailed(PlacementRefused):
    """Host {host} could not {action} the guest of instance {instance_uuid}: {reason}."""

    code = "moorage.guest_action_failed"
    instance_uuid: str
    host: str
    action: str
    reason: str
