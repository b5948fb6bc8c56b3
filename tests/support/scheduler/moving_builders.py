"""Instances on a rig that are built and then moved, and groups of them: for the tests of destinations."""

from typing import Any

from moorage.ids import derived
from moorage.messages import AcceptClaim, EndMove, GetAllocations, SelectDestinations
from moorage.model import Consumer, Move, MoveKind, Selection, ServerGroup
from support.scheduler.builders import select
from support.scheduler.rig import OneScheduler, Rig


def group(policy: Any, most: int = 1, number: int = 1) -> ServerGroup:
    return ServerGroup(uuid=derived("tests", "group", number), policy=policy, max_server_per_host=most)


def instance_of(request_id: str) -> str:
    """Return the instance that a request with this id builds."""
    return select(request_id).instance_uuids[0]


def migration_of(request_id: str) -> str:
    return derived(request_id, "migration")


def build(rig: Rig, scheduler: OneScheduler, request_id: str, *, accepted: bool = True, **spec: Any) -> Selection:
    """Claim a host for an instance and, by default, let the host accept the claim."""
    [[claimed, *_]] = scheduler.select(select(request_id, **spec))
    if accepted:
        accept(rig, instance_of(request_id), claimed)
    return claimed


def accept(rig: Rig, instance_uuid: str, claimed: Selection) -> None:
    assert claimed.claim_id is not None
    rig.placement.call(
        AcceptClaim(
            request_id=rig.fresh(),
            consumer_uuid=instance_uuid,
            claim_id=claimed.claim_id,
            attempt_id=derived(claimed.claim_id, "attempt"),
            host=claimed.service_host,
        )
    )


def move(
    request_id: str,
    instance_uuid: str,
    source: Selection,
    kind: MoveKind = "cold-migration",
    *,
    num_alternates: int = 0,
    drop_extras: bool = False,
    **spec: Any,
) -> SelectDestinations:
    """Return the request that moves an instance from its claimed host."""
    asked = select(request_id, num_alternates=num_alternates, **spec)
    assert source.claim_id is not None
    assert source.consumer_generation is not None
    return SelectDestinations(
        request_id=request_id,
        request_spec=asked.request_spec,
        instance_uuids=(instance_uuid,),
        num_alternates=num_alternates,
        consumer_generations={instance_uuid: source.consumer_generation},
        move=Move(
            migration_uuid=migration_of(request_id),
            kind=kind,
            claim_id=source.claim_id,
            held=source.allocation_request,
            drop_extras=drop_extras,
        ),
    )


def end(rig: Rig, request_id: str, instance_uuid: str, outcome: Any, source: Selection, claimed: Selection) -> None:
    """End the move that the request with this id has begun."""
    assert claimed.claim_id is not None
    rig.placement.call(
        EndMove(
            request_id=rig.fresh(),
            consumer_uuid=instance_uuid,
            migration_uuid=migration_of(request_id),
            claim_id=claimed.claim_id,
            outcome=outcome,
            held=source.allocation_request,
            claimed=claimed.allocation_request,
            guest_gone=True,
        )
    )


def consumer(rig: Rig, uuid: str) -> Consumer:
    return rig.placement.call(GetAllocations(consumer_uuid=uuid))


def held(rig: Rig, uuid: str) -> dict[str, dict[str, int]]:
    return {provider: dict(part.resources) for provider, part in consumer(rig, uuid).allocations.items()}
