"""Read the allocations of consumers: those that existed before their instance, and foreign ones beside a claim.

An instance whose consumer existed before it must be built on the node of that consumer's allocations.
"""

from collections import Counter

from msgspec import structs

from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.conflict_policy import find_consumer
from moorage import errors
from moorage.messages import GetResourceProvider
from moorage.model import AllocationRequest, Allocations, Consumer, Destination, ProviderAmounts, RequestSpec

_SHARES = "MISC_SHARES_VIA_AGGREGATE"


def node_of(placement: AcknowledgingClient, uuid: str, spec: RequestSpec, *, instances: int) -> str:
    """Return the uuid of the compute node of a consumer's allocations, if its instance can be built there.

    Its provider may have another name than the node.

    :param spec: the request that was refused.
    :param instances: the number of instances of the request, which has the same destination for all of them.
    :raises InvalidState: the instance cannot be built there, with the reason.
    :raises Unavailable: the placement role does not answer.
    """
    consumer = find_consumer(placement, uuid)
    if consumer is not None and consumer.claim_id is not None:
        # The stored answer to an earlier try may have expired: then the reconciler releases the claim.
        unless = "" if consumer.accepted_by else ", which an unanswered request of this build may have made"
        raise _refused(uuid, f"it is placed already, by claim {consumer.claim_id}{unless}")
    uuids = {} if consumer is None else _nodes(placement, list(consumer.allocations))
    nodes = sorted(uuids)
    if not nodes:
        raise _refused(uuid, "its allocations have been released in the meantime: order it again")
    if len(nodes) > 1:
        raise _refused(uuid, f"it has allocations on nodes {', '.join(nodes)}; a server has one node")
    if instances > 1:
        raise _refused(uuid, f"it has allocations on node {nodes[0]}: order a build of this instance alone")
    if spec.force_hosts or spec.force_nodes or spec.requested_destination:
        raise _refused(uuid, f"it has allocations on node {nodes[0]}, and is to be built elsewhere")
    return uuids[nodes[0]]


def _nodes(placement: AcknowledgingClient, providers: list[str]) -> dict[str, str]:
    """Return the root providers of these providers, without sharing providers: the uuid of each by its name."""
    held = [placement.call(GetResourceProvider(uuid=uuid)) for uuid in providers]
    roots = {one.root_provider_uuid for one in held if _SHARES not in one.traits}
    return {placement.call(GetResourceProvider(uuid=root)).name: root for root in roots}


def why_kept(placement: AcknowledgingClient, uuid: str) -> str | None:
    """Return the reason to keep a consumer's allocations when an instance without a cell is deleted, or None.

    Only a cell gives a claim to a host. So a claim that a host has accepted was not made for that instance.

    :raises Unavailable: the placement role does not answer.
    """
    consumer = find_consumer(placement, uuid)
    if consumer is None or consumer.accepted_by is None:
        return None
    return f"the allocations of consumer {uuid} by claim {consumer.claim_id} are not those of this instance, and stay"


def foreign_beside(consumer: Consumer, claimed: AllocationRequest) -> Allocations:
    """Return the allocations of a consumer beyond those of its claim, also after a reshape has moved some of these."""
    excess: Counter[str] = Counter()
    for part in consumer.allocations.values():
        excess.update(part.resources)
    for part in claimed.allocations.values():
        excess.subtract(part.resources)
    found: dict[str, ProviderAmounts] = {}
    for uuid, part in without(consumer.allocations, claimed.allocations).items():
        # A reshape keeps the sum of each class.
        foreign = {name: min(amount, excess[name]) for name, amount in part.resources.items() if excess[name] > 0}
        if foreign:
            found[uuid] = ProviderAmounts(resources=foreign)
    return found


def without(allocations: Allocations, others: Allocations) -> dict[str, ProviderAmounts]:
    """Return the amounts of allocations that exceed those of others."""
    found: dict[str, ProviderAmounts] = {}
    for uuid, part in allocations.items():
        left = Counter(part.resources) - Counter(others[uuid].resources if uuid in others else {})
        if left:
            found[uuid] = ProviderAmounts(resources=dict(left))
    return found


def on_node(spec: RequestSpec, node_uuid: str | None, node: str | None = None) -> RequestSpec:
    """Return a request restricted to a node, or the request itself if no node is given.

    :param node: the name of the node, in the records of earlier versions.
    """
    if node_uuid is None and node is None:
        return spec
    return structs.replace(spec, requested_destination=Destination(node_uuid=node_uuid, node=node))


def _refused(uuid: str, why: str) -> errors.InvalidState:
    return errors.InvalidState(reason=f"consumer {uuid} exists already and cannot be used for a build: {why}")
