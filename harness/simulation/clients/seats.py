"""Seats that two consumers share: callers divide them anew, and operators move them within their provider tree."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from harness.simulation import queries
from harness.simulation.clients.requests import Methods, Requests
from harness.simulation.story import Action
from moorage import ids
from moorage.messages import (
    EnsureResourceClass,
    ListProviderTrees,
    PostAllocations,
    ReportProviders,
    Reshape,
    ReshapeByInstructions,
)
from moorage.messages.wire import Mutation
from moorage.model import (
    Consumer,
    ConsumerAllocations,
    Inventory,
    MoveInstruction,
    ProviderAmounts,
    ProviderReport,
    ReshapedInventories,
)

SEAT = "CUSTOM_SEAT"
#: A root provider and its child; the seats are on one of them, or on both.
PLACES = (ids.derived("simulation", "seats"), ids.derived("simulation", "more seats"))
HOLDERS = (ids.derived("simulation", "holder"), ids.derived("simulation", "other holder"))
#: The number of seats, and how many of them the holders share.
_SEATS, _SHARED = 100, 20


def create_seats(call: Callable[[Mutation[Any]], object]) -> None:
    """Create the seats, and let each holder have half of those that are shared; ``call`` sends a request."""
    call(EnsureResourceClass(request_id=ids.fresh(), name=SEAT))
    root, child = PLACES
    trees = (
        ProviderReport(uuid=root, name="seats", inventories={SEAT: Inventory(total=_SEATS)}),
        ProviderReport(uuid=child, name="more seats", parent_provider_uuid=root),
    )
    call(ReportProviders(request_id=ids.fresh(), providers=trees))
    half = {uuid: _holding({root: _SHARED // 2}, None) for uuid in HOLDERS}
    call(PostAllocations(request_id=ids.fresh(), consumers=half))


def wrong_seats(file: sqlite3.Connection) -> Iterator[str]:
    """Yield why the seats are not those that every transaction must leave."""
    held, inventories = file.execute(queries.SEATS.format(name=SEAT, holders=HOLDERS)).fetchone()
    if held != _SHARED:
        yield f"promise 7: the holders have {held} seats, of {_SHARED}"
    if inventories != _SEATS:
        yield f"promise 7: there are {inventories} seats, of {_SEATS}"


class Seats:
    """The callers who divide the seats, and the operators who move them."""

    def __init__(self, callers: Requests) -> None:
        self._callers = callers
        callers.others.update(HOLDERS)
        self.methods: Methods = {"divide seats": self._divide, "move seats": self._move}

    def _divide(self, action: Action) -> None:
        """Let two callers divide the seats anew, both with the generations that they have read: only one may."""
        found = self._holders()
        place = PLACES[action.choice // 4 % 2]
        first = action.choice // 8 % _SHARED

        def divide(share: int) -> None:
            wanted = {
                uuid: _holding({place: amount}, found[uuid])
                for uuid, amount in zip(HOLDERS, (share, _SHARED - share), strict=True)
            }
            request_id = self._callers.request_id(action, share)
            self._callers.call("placement", PostAllocations(request_id=request_id, consumers=wanted))

        shares = (first, _SHARED - first // 2)
        broken = f"promise 7: two callers have divided the seats, {shares}"
        self._callers.compete(action, [partial(divide, share) for share in shares], broken)

    def _move(self, action: Action) -> None:
        """Move all seats of one place to the other one, or half of them."""
        source, target = PLACES if action.choice // 4 % 2 else PLACES[::-1]
        move = self._whole_move if action.choice // 8 % 2 else self._part_move
        if (message := move(action, source, target)) is not None:
            self._callers.again(partial(self._callers.send, "placement", message))

    def _part_move(self, action: Action, source: str, target: str) -> ReshapeByInstructions:
        """Return the reshape that moves all seats, or half of them; they are refused if there are not so many."""
        instruction = MoveInstruction(
            from_resource_provider=source,
            to_resource_provider=target,
            moved_resources={SEAT: (_SEATS, _SEATS // 2)[action.choice // 16 % 2]},
        )
        return ReshapeByInstructions(request_id=self._callers.request_id(action), instructions=(instruction,))

    def _whole_move(self, action: Action, source: str, target: str) -> Reshape | None:
        """Return the reshape that leaves nothing at the source, as it was read; null if there is nothing."""
        holders = self._holders()
        trees = {one.uuid: one for one in self._callers.call("placement", ListProviderTrees(uuids=(PLACES[0],)))}
        if not trees[source].inventories:
            return None
        moved = Inventory(total=sum(one.inventories[SEAT].total for one in trees.values() if one.inventories))
        return Reshape(
            request_id=self._callers.request_id(action),
            inventories={
                uuid: ReshapedInventories(generation=trees[uuid].generation, inventories=inventories)
                for uuid, inventories in ((source, {}), (target, {SEAT: moved}))
            },
            allocations={
                uuid: _holding({target: sum(part.resources[SEAT] for part in one.allocations.values())}, one)
                for uuid, one in holders.items()
                if one is not None
            },
        )

    def _holders(self) -> dict[str, Consumer | None]:
        return {uuid: self._callers.consumer(uuid) for uuid in HOLDERS}


def _holding(seats: Mapping[str, int], present: Consumer | None) -> ConsumerAllocations:
    """Return the allocations of a holder that has seats at some places."""
    return ConsumerAllocations(
        allocations={uuid: ProviderAmounts(resources={SEAT: amount}) for uuid, amount in seats.items() if amount},
        project_id="p",
        user_id="u",
        consumer_type="OTHER",
        consumer_generation=None if present is None else present.generation,
    )
