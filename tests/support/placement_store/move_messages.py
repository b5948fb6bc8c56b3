"""Random messages about moves and server groups, in addition to those of :mod:`support.placement_store.messages`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from moorage import ids
from moorage.messages import (
    AcceptClaim,
    CreateServerGroup,
    DeleteAllocations,
    DeleteServerGroup,
    EndMove,
    PutAllocations,
    SwapClaim,
)
from moorage.model import AllocationRequest, Move
from placement_store.claims.claim import NewClaim
from support.placement_store.messages import CLASSES, KINDS, Writes
from support.placement_store.model import GROUPS, BeginMove, Claim, described
from support.placement_store.model.basis import Holder

#: The consumers that move: only messages of this module claim for them, and they are rarely deleted.
MOVERS = [ids.derived("mover", number) for number in range(4)]
#: What is known of the guest that a move leaves: mostly that it is gone.
_ENDS: Sequence[dict[str, Any]] = ({"guest_gone": True}, {"guest_gone": True}, {"leave_residue": True}, {})


class MovingWrites(Writes):
    """Makes one message, based on the content of the model, including moves and server groups."""

    def any(self) -> Any:
        """Return a message of any kind; its probability is proportional to its occurrences in :data:`ALL_KINDS`."""
        return self._random.choice(ALL_KINDS)(self)

    # --- Before a move ----------------------------------------------------------------------------------------------

    def claim_for_a_mover(self) -> Claim:
        """Return the placement of one or two movers, perhaps as members of a group."""
        unplaced = [uuid for uuid in MOVERS if uuid not in self._model.holders or not self._holder(uuid).claim_id]
        chosen = self._some(unplaced or MOVERS, at_least=1, at_most=2)
        return Claim(tuple(self._new_claim_that_fits(uuid) for uuid in chosen))

    def accept_a_mover(self) -> AcceptClaim | Claim:
        """Return the acceptance of a mover's claim by a host."""
        waiting = [uuid for uuid in self._placed() if self._holder(uuid).accepted_by is None]
        if not waiting:
            return self.claim_for_a_mover()
        uuid = self._random.choice(waiting)
        claim_id = str(self._holder(uuid).claim_id)
        attempt_id = ids.derived("attempt", claim_id)
        return AcceptClaim(
            **self._mutation(), consumer_uuid=uuid, claim_id=claim_id, attempt_id=attempt_id, host="host"
        )

    def _holder(self, uuid: str) -> Holder:
        return self._model.holders[uuid]

    def _placed(self) -> list[str]:
        return [uuid for uuid in MOVERS if uuid in self._model.holders and self._holder(uuid).claim_id]

    def _new_claim_that_fits(self, uuid: str) -> NewClaim:
        """Return a claim of amounts that are mostly free."""
        resources = self._amounts(at_least=1) if self._once_in(8) else self._free() or self._amounts(at_least=1)
        group = GROUPS[self._random.choice(sorted(GROUPS))] if self._once_in(2) else None
        return replace(
            self._new_claim(uuid),
            allocations=resources,
            root_provider_uuid=self._root(next(iter(resources))),
            group=group,
        )

    def _free(self) -> dict[str, dict[str, int]]:
        """Return some of the free amounts, often several of one class: those of a host and of parts of a pool."""
        used = self._model.used()
        fitting = []
        for pair in self._pairs:
            inventory = self._model.inventory(pair)
            if inventory is not None:
                amount = max(inventory.min_unit, inventory.step_size)
                if amount % inventory.step_size == 0 and used[pair] + 2 * amount <= inventory.capacity:
                    fitting.append((pair, amount))
        if self._once_in(2):
            of_one_class = [one for one in fitting if one[0][1] == CLASSES[0]]
            return described(dict(self._some(of_one_class, at_least=3, at_most=3)))
        return described(dict(self._some(fitting, at_least=1, at_most=3)))

    # --- Moves ------------------------------------------------------------------------------------------------------

    def begin_move(self) -> BeginMove | AcceptClaim | Claim:
        """Return a move of an instance, mostly accepted by its host, with amounts that it mostly holds."""
        moving = {one.migration_of for one in self._model.holders.values() if one.claim_id}
        accepted = [uuid for uuid in self._placed() if self._holder(uuid).accepted_by]
        if settled := [uuid for uuid in accepted if uuid not in moving or self._once_in(8)]:
            uuid = self._random.choice(settled)
        elif self._once_in(8):
            uuid = self._random.choice(MOVERS)
        else:
            return self.accept_a_mover()
        holder = self._model.holders.get(uuid)
        held = self._of_its_own(uuid)
        move = Move(
            migration_uuid=self._migration() if self._once_in(8) else ids.fresh(),
            kind=self._random.choice(["cold-migration", "resize"]),
            claim_id=(holder and holder.claim_id) or ids.derived("no claim"),
            held=AllocationRequest(allocations=self._parts(held)),
            drop_extras=self._once_in(2),
        )
        return BeginMove(self._new_claim_that_fits(uuid), move)

    def _of_its_own(self, uuid: str) -> dict[str, dict[str, int]]:
        """Return possible claimed amounts of an instance: mostly everything it holds, sometimes less, or elsewhere."""
        holder = self._model.holders.get(uuid)
        held = {
            (self._provider() if self._once_in(10) else provider, name): amount - (amount > 1 and self._once_in(5))
            for (provider, name), amount in (holder.held if holder else {}).items()
            if not self._once_in(6)
        }
        return described(held) or self._amounts(at_least=1)

    def _migration(self) -> str:
        """Return a migration, which is mostly under way."""
        there = [uuid for uuid, one in sorted(self._model.holders.items()) if one.migration_of is not None]
        known = sorted(self._model.recorded) if self._once_in(12) else there
        return self._random.choice(known) if known else ids.derived("no migration")

    def _recorded(self, migration: str) -> tuple[str, str, AllocationRequest, AllocationRequest]:
        """Return the instance of a migration, its claim, and the claimed amounts of both sides."""
        holder = self._model.holders.get(migration)
        uuid = (holder and holder.migration_of) or self._random.choice(MOVERS)
        if self._once_in(15):
            uuid = self._random.choice(MOVERS)
        instance = self._model.holders.get(uuid)
        claim_id = (instance and instance.claim_id) or ids.derived("no claim")
        # If another message has claimed for the instance since, the store has no record of the source for this claim.
        # The model always has one.
        if claim_id != self._model.destinations.get(migration):
            claim_id = ids.derived("no claim")
        nothing = AllocationRequest(allocations=self._parts(self._amounts(at_least=1)))
        held, claimed = self._model.recorded.get(migration, (nothing, nothing))
        return uuid, claim_id, held, claimed

    def swap_in_a_move(self) -> Any:
        """Return the swap of a move to its next destination; if there is no move, the beginning of one."""
        if not self._under_way() and not self._once_in(10):
            return self.begin_move()
        migration = self._migration()
        uuid, claim_id, held, claimed = self._recorded(migration)
        wanted = self._free() or self._amounts(at_least=1)
        how = self._random.choice(_ENDS)
        return SwapClaim(
            **self._mutation(),
            consumer_uuid=uuid,
            claim_id=claim_id,
            released=_relying_on_nothing(claimed),
            claimed=AllocationRequest(allocations=self._parts(wanted)),
            root_provider_uuid=self._root(next(iter(wanted))),
            migration_uuid=migration,
            held=_relying_on_nothing(held),
            **how,
        )

    def end_move(self) -> Any:
        """Return the confirmation or the revert of a move; if there is no move, the beginning of one."""
        if not self._under_way() and not self._once_in(10):
            return self.begin_move()
        migration = self._migration()
        uuid, claim_id, held, claimed = self._recorded(migration)
        how = self._random.choice(_ENDS)
        return EndMove(
            **self._mutation(),
            consumer_uuid=uuid,
            migration_uuid=migration,
            claim_id=claim_id,
            outcome=self._random.choice(["confirm", "revert"]),
            held=_relying_on_nothing(held),
            claimed=_relying_on_nothing(claimed),
            consumer_generation=self._consumer_generation(uuid) if self._once_in(2) else None,
            migration_generation=self._consumer_generation(migration) if self._once_in(4) else None,
            keep_extras=self._once_in(2),
            **how,
        )

    def _under_way(self) -> bool:
        return any(one.migration_of is not None for one in self._model.holders.values())

    def put_on_migration(self) -> PutAllocations:
        """Return a foreign write to a migration: other amounts, or more."""
        uuid = self._migration()
        holder = self._model.holders.get(uuid)
        amounts = described(holder.held) if holder and not self._once_in(4) else {}
        more = self._amounts()
        wanted = {at: amounts.get(at, {}) | more.get(at, {}) for at in (*amounts, *more)}
        return PutAllocations(**self._mutation(), consumer_uuid=uuid, wanted=self._wanted(uuid, self._parts(wanted)))

    def delete_moving(self) -> DeleteAllocations:
        """Return the deletion of an instance for good, perhaps during a move."""
        uuid = self._random.choice(MOVERS)
        how: dict[str, Any] = self._random.choice([{}, {"leave_residue": True}])
        if self._once_in(3):
            how = how | {"keep_extras": True}
        moves = [(one, other) for one, other in sorted(self._model.holders.items()) if other.migration_of == uuid]
        if self._once_in(2):
            # As a conductor does: both claims, the migrations by uuid, and perhaps guests that are known to be gone.
            named = tuple(one for one, _ in moves) or (self._migration() if self._once_in(8) else ids.fresh(),)
            sides = [one for one in (self._model.holders.get(uuid), *(other for _, other in moves)) if one is not None]
            how = how | {"migration_uuids": named}
            how |= {"guests_gone": tuple(one.accepted_by for one in sides if one.accepted_by and self._once_in(3))}
        if moves and self._once_in(2):
            migration, source = moves[0]
            instance, request = self._model.holders.get(uuid), self._model.recorded.get(migration)
            is_recorded = instance and instance.claim_id == self._model.destinations.get(migration)
            if instance and instance.claim_id and source.claim_id and request and is_recorded:
                claimed_with = dict(
                    zip((source.claim_id, instance.claim_id), map(_relying_on_nothing, request), strict=True)
                )
                how = how | {"claimed_with": claimed_with}
        if self._once_in(6):
            how = how | {"consumer_generation": self._consumer_generation(uuid)}
        return DeleteAllocations(**self._mutation(), consumer_uuid=uuid, for_good=True, **how)

    def _for_good(self, uuid: str, claim_id: str | None) -> dict[str, Any]:
        how = super()._for_good(uuid, claim_id)
        if any(one.migration_of == uuid for one in self._model.holders.values()):
            # Another method covers amounts of a pool that both sides use; here, the claimed amounts are left out.
            how.pop("claimed_with", None)
        return how

    # --- Groups -----------------------------------------------------------------------------------------------------

    def group(self) -> CreateServerGroup | DeleteServerGroup:
        """Return a server group that comes or goes."""
        uuid = self._random.choice(sorted(GROUPS))
        if self._once_in(2):
            return DeleteServerGroup(**self._mutation(), uuid=uuid)
        return CreateServerGroup(**self._mutation(), group=GROUPS[uuid], name="group", project_id="project")


def _relying_on_nothing(request: AllocationRequest) -> AllocationRequest:
    """Return the claimed amounts, without the generations that the claim relied on."""
    parts = {at: structs.replace(part, generation=None) for at, part in request.allocations.items()}
    return AllocationRequest(allocations=parts)


#: The kinds of messages; the probability of each is proportional to its occurrences.
ALL_KINDS: Sequence[Callable[[MovingWrites], Any]] = (
    *KINDS,
    *[MovingWrites.claim_for_a_mover] * 3,
    *[MovingWrites.begin_move] * 8,
    *[MovingWrites.swap_in_a_move] * 4,
    *[MovingWrites.end_move] * 6,
    MovingWrites.put_on_migration,
    MovingWrites.delete_moving,
    MovingWrites.group,
)
