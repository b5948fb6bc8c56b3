"""The writes of an operator and of other clients, each once, so that every mutation of theirs was sent."""

from contextlib import suppress
from typing import Any

from moorage import errors, ids
from moorage.messages import (
    AcknowledgeRequests,
    AddAggregateHost,
    AttemptsGone,
    CatchUpView,
    CreateHostAggregate,
    CreateResourceProvider,
    CreateServerGroup,
    DeleteHost,
    DeleteHostAggregate,
    DeleteInventories,
    DeleteInventory,
    DeleteResourceClass,
    DeleteResourceProvider,
    DeleteServerGroup,
    DeleteTrait,
    EnsureResourceClass,
    EnsureTrait,
    ExplainRequest,
    GetAllocations,
    GetHostAggregate,
    GetResourceProvider,
    GetServerGroup,
    ListClaims,
    ListHostAggregates,
    ListMigrations,
    ListProviderAllocations,
    ListReconciled,
    ListResourceClasses,
    ListServerGroups,
    ListStrangers,
    ListTraits,
    ListUsages,
    LocateCellInCell,
    OwnsClaim,
    PlanReshape,
    PostAllocations,
    RecountInventories,
    RemoveAggregateHost,
    ReportProviderTree,
    Reshape,
    ReshapeByInstructions,
    ReshapeProviderTree,
    SetAggregates,
    SetHost,
    SetHostAggregate,
    SetInventories,
    SetInventory,
    SetTraits,
    ShowPolicy,
    SyncHostAggregates,
    UpdateResourceProvider,
)
from moorage.messages.wire import Message
from moorage.model import (
    EndedAttempt,
    Inventory,
    MoveInstruction,
    ReshapedInventories,
    ServerGroup,
)
from support.operations.cloud import TroublesomeCloud
from support.operations.room import Room
from support.placement_store.builders import Store

#: Reads of operators that have no object.
READS: tuple[Message[Any], ...] = (
    CatchUpView(),
    ListClaims(),
    ListHostAggregates(),
    ListMigrations(),
    ListReconciled(),
    ListResourceClasses(),
    ListServerGroups(),
    ListStrangers(),
    ListTraits(),
    ListUsages(project_id="p"),
    ShowPolicy(),
)
_CLASS, _TRAIT = "CUSTOM_TOKEN", "CUSTOM_QUIET"


def work(room: Room, cloud: TroublesomeCloud, instance_uuid: str) -> None:
    """Write to providers, names, aggregates, groups and hosts, and read them; and ask who owns a claim."""
    instance = room.show(instance_uuid)
    _providers(cloud, f"conductor.{instance.cell_uuid}")
    _scheduler(room, cloud)
    for message in READS:
        _tell(cloud, message.topic, message)
    _tell(cloud, "conductor", OwnsClaim(**_new(), consumer_uuid=instance_uuid, claim_id=str(instance.claim_id)))
    ended = next(one for one in instance.attempts if one.state == "ended")
    # As an agent that is configured with the uuid of its cell.
    _tell(cloud, f"conductor.{instance.cell_uuid}", LocateCellInCell(name="cell1"))
    _tell(cloud, f"conductor.{instance.cell_uuid}", ReportProviderTree(**_new(), agent="agent-cell1", providers=()))
    gone = EndedAttempt(host=ended.host, instance_uuid=instance_uuid, attempt_id=ended.attempt_id, claim_id=ids.fresh())
    _tell(cloud, f"conductor.{instance.cell_uuid}", AttemptsGone(**_new(), agent="agent-cell1", attempts=(gone,)))


def _new() -> dict[str, Any]:
    return {"request_id": ids.fresh()}


def _tell(cloud: TroublesomeCloud, topic: str, message: Message[Any]) -> Any:
    return cloud.client(topic).call(message)


def _providers(cloud: TroublesomeCloud, cell: str) -> None:
    root, child, consumer = ids.fresh(), ids.fresh(), ids.fresh()

    def tell(message: Message[Any]) -> Any:
        return _tell(cloud, "placement", message)

    tell(EnsureResourceClass(**_new(), name=_CLASS))
    tell(EnsureTrait(**_new(), name=_TRAIT))
    tell(CreateResourceProvider(**_new(), uuid=root, name=root))
    tell(CreateResourceProvider(**_new(), uuid=child, name=child, parent_provider_uuid=root))
    tell(UpdateResourceProvider(**_new(), uuid=child, name=f"{child}-renamed"))
    tell(SetInventory(**_new(), uuid=root, resource_class=_CLASS, inventory=Inventory(total=8)))
    tell(SetTraits(**_new(), uuid=root, generation=_generation(cloud, root), traits=(_TRAIT,)))
    tell(SetAggregates(**_new(), uuid=root, aggregates=(ids.fresh(),)))
    tell(PostAllocations(**_new(), consumers={consumer: Store.wanted({root: {_CLASS: 2}}, consumer_type="OTHER")}))
    tell(RecountInventories(**_new(), provider_uuids=(root,)))
    instruction = MoveInstruction(from_resource_provider=root, moved_resources={_CLASS: 8}, to_resource_provider=child)
    tell(ReshapeByInstructions(**_new(), instructions=(instruction,)))
    generation = tell(GetAllocations(consumer_uuid=consumer)).generation
    tell(PostAllocations(**_new(), consumers={consumer: Store.wanted({}, generation, consumer_type="OTHER")}))
    same = ReshapedInventories(generation=_generation(cloud, child), inventories={_CLASS: Inventory(total=8)})
    tell(Reshape(**_new(), inventories={child: same}))
    back = MoveInstruction(from_resource_provider=child, moved_resources={_CLASS: 4}, to_resource_provider=root)
    tell(ListProviderAllocations(uuid=child))
    tell(PlanReshape(instructions=(back,)))
    _tell(cloud, cell, ReshapeProviderTree(**_new(), agent="an operator", instructions=(back,)))
    tell(DeleteInventory(**_new(), uuid=child, resource_class=_CLASS))
    tell(
        SetInventories(
            **_new(), uuid=root, generation=_generation(cloud, root), inventories={_CLASS: Inventory(total=1)}
        )
    )
    tell(DeleteInventories(**_new(), uuid=root))
    tell(SetTraits(**_new(), uuid=root, generation=_generation(cloud, root), traits=()))
    for uuid in (child, root):
        tell(DeleteResourceProvider(**_new(), uuid=uuid))
    tell(DeleteTrait(**_new(), name=_TRAIT))
    tell(DeleteResourceClass(**_new(), name=_CLASS))
    tell(AcknowledgeRequests(**_new(), request_ids=(ids.fresh(),)))
    group = ServerGroup(uuid=ids.fresh(), policy="affinity")
    tell(CreateServerGroup(**_new(), group=group, name="group", project_id="p"))
    tell(GetServerGroup(uuid=group.uuid))
    tell(DeleteServerGroup(**_new(), uuid=group.uuid))


def _scheduler(room: Room, cloud: TroublesomeCloud) -> None:
    host = room.hosts["alternate"]

    def tell(message: Message[Any]) -> Any:
        return _tell(cloud, "scheduler", message)

    tell(CreateHostAggregate(**_new(), name="fast"))
    tell(SetHostAggregate(**_new(), aggregate="fast", metadata={"disk": "ssd"}))
    tell(AddAggregateHost(**_new(), aggregate="fast", service_host=host))
    tell(GetHostAggregate(aggregate="fast"))
    tell(ExplainRequest(request_spec=room.spec()))
    tell(SyncHostAggregates(**_new()))
    tell(RemoveAggregateHost(**_new(), aggregate="fast", service_host=host))
    tell(DeleteHostAggregate(**_new(), aggregate="fast"))
    tell(SetHost(**_new(), service_host=host, disabled=True))
    tell(SetHost(**_new(), service_host=host, disabled=False))
    tell(SetHost(**_new(), service_host=host, forced_down=True))
    # Refused if a server is on it.
    with suppress(errors.InvalidState):
        tell(DeleteHost(**_new(), service_host=host, dry_run=True))
    tell(SetHost(**_new(), service_host=host, forced_down=False))


def _generation(cloud: TroublesomeCloud, uuid: str) -> int:
    return cloud.client("placement").call(GetResourceProvider(uuid=uuid)).generation
