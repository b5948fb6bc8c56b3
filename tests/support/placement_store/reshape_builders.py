"""Builders for the tests of reshapes: short forms of their messages, and a dump of a store to compare."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, select

from moorage import ids
from moorage.messages import PlanReshape, Reshape, ReshapeByInstructions
from moorage.model import (
    ChildProvider,
    ConsumerAllocations,
    Inventory,
    InventoryFields,
    MoveInstruction,
    Reallocation,
    ReshapedInventories,
    ReshapePlan,
)
from placement_store.schema import METADATA, changes, requests
from support.placement_store.builders import Store

#: The source, the amounts, and the target.
Move = tuple[str, Mapping[str, int], str]

#: The tables that contain neither inventories nor allocations.
_BOOKS = {changes.name, requests.name}


class Reshaping:
    """Reshapes of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dispatcher = store.dispatcher

    def move(self, *moves: Move, **more: Any) -> ReshapePlan:
        return self.dispatcher.call(self.message(*moves, **more))

    @staticmethod
    def message(*moves: Move, **more: Any) -> ReshapeByInstructions:
        return ReshapeByInstructions(**{"request_id": ids.fresh()} | more, instructions=instructions(moves))

    def plan(self, *moves: Move, **more: Any) -> ReshapePlan:
        return self.dispatcher.call(PlanReshape(**more, instructions=instructions(moves)))

    def whole(
        self,
        inventories: Mapping[str, Mapping[str, int | Inventory]],
        allocations: Mapping[str, ConsumerAllocations] | None = None,
        generations: Mapping[str, int] | None = None,
    ) -> None:
        """Give providers all these inventories, at their current generations unless others are given."""
        reshaped = {
            uuid: ReshapedInventories(
                generation=(generations or {}).get(uuid, self._store.generation(uuid)),
                inventories={n: Inventory(total=i) if isinstance(i, int) else i for n, i in described.items()},
            )
            for uuid, described in inventories.items()
        }
        self.dispatcher.call(Reshape(request_id=ids.fresh(), inventories=reshaped, allocations=dict(allocations or {})))


def instructions(moves: Sequence[Move]) -> tuple[MoveInstruction, ...]:
    return tuple(
        MoveInstruction(from_resource_provider=source, moved_resources=dict(resources), to_resource_provider=target)
        for source, resources, target in moves
    )


def child(
    name: str, parent: str, inventories: Mapping[str, Mapping[str, Any]] | None = None, **more: Any
) -> ChildProvider:
    fields = {n: InventoryFields(**described) for n, described in (inventories or {}).items()}
    return ChildProvider(name=name, parent=parent, inventories=fields, **more)


def dealt(consumer: str, source: str, target: str, **resources: int) -> Reallocation:
    return Reallocation(
        consumer_uuid=consumer, from_resource_provider=source, to_resource_provider=target, resources=resources
    )


def everything(store: Store) -> dict[str, list[Any]]:
    """Return all rows of all tables except requests and changes."""

    def rows(table: Table) -> list[Any]:
        return store.database.read(lambda connection: [tuple(row) for row in connection.execute(select(table))])

    tables = [table for table in METADATA.sorted_tables if table.name not in _BOOKS]
    return {table.name: sorted(rows(table), key=repr) for table in tables}
