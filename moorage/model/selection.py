"""Selections: the scheduler's answer."""

from collections import Counter

from moorage.model.allocations import AllocationRequest
from moorage.model.basis import Generation, Name, ResourceClassName, Resources, Uuid, Value
from moorage.model.explanation import Explanation


class Selection(Value, frozen=True, kw_only=True):
    """A host in an answer, with its allocation request.

    Only the claimed one has a ``claim_id``. In a replayed answer it is marked ``released`` if that claim no longer
    stands, with the present consumer generation.
    """

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    cell_uuid: Uuid
    agent: Name
    availability_zone: Name
    allocation_request: AllocationRequest
    #: The providers of the allocation request that are pools, and not the host's own.
    shared_providers: tuple[Uuid, ...] = ()
    #: The capacity of the host by resource class, including pools that share with it.
    limits: dict[ResourceClassName, float] = {}
    weight: float = 0.0
    #: The server group whose rule the host meets.
    group: Uuid | None = None
    claim_id: Uuid | None = None
    consumer_generation: Generation | None = None
    released: bool = False
    #: The explanation of a claimed host, on request.
    explanation: Explanation | None = None

    @property
    def resources(self) -> Resources:
        """The claimed amounts by resource class, summed over the host's own providers."""
        amounts: Counter[str] = Counter()
        for uuid, part in self.allocation_request.allocations.items():
            if uuid not in self.shared_providers:
                amounts.update(part.resources)
        return dict(amounts)
