"""Update `used` of inventories, guarded by their capacity and unit rules, and report which inventories refused.

Only this guarded update decides whether a write fits: all reads before it are hints.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, func, select

from moorage import errors
from moorage.db.script import Script, StatementOutcome
from placement_store.allocations.consumers import Pair
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import InventoryRow
from placement_store.schema import allocations

LOG = logging.getLogger(__name__)

#: The most pairs in one statement. The database may compare each row with each kind of demand in the statement, so the
#: worst-case cost grows with the square of this number. Arbitrary.
_TOGETHER = 192


@dataclass(frozen=True, slots=True)
class Demand:
    """Hold the demand of one write on one inventory: the net growth over all its consumers, and each new amount."""

    pair: Pair
    growth: int
    amounts: tuple[int, ...] = ()

    def exceeds(self, used: int, inventory: InventoryRow) -> bool:
        """Return whether the growth exceeds an inventory with this amount ``used``, by the database's formula."""
        return self.growth > 0 and used + self.growth > inventory.capacity

    def breaks_unit_rules(self, inventory: InventoryRow) -> str | None:
        """Return the unit rule that one of the new amounts breaks, if any."""
        if any(not inventory.min_unit <= amount <= inventory.max_unit for amount in self.amounts):
            return f"not between min_unit {inventory.min_unit} and max_unit {inventory.max_unit}"
        if any(amount % inventory.step_size for amount in self.amounts):
            return f"not a multiple of step_size {inventory.step_size}"
        return None


def take(script: Script, demands: Sequence[Demand], names: ResourceClassNames) -> None:
    """Update `used` of each inventory by the net growth, or refuse the whole write.

    The providers' rows must be locked. Net growth must fit into the capacity; a demand that shrinks or stays equal is
    never refused for capacity. Each new amount must keep the unit rules.

    :raises CapacityExceeded: naming every inventory that has refused; the transaction must then be rolled back.
    """
    for start in range(0, len(demands), _TOGETHER):
        part = demands[start : start + _TOGETHER]
        script.add(_statement(part, script.dialect), then=partial(_require_room, script, demands, part, names))


def _require_room(
    script: Script,
    demands: Sequence[Demand],
    part: Sequence[Demand],
    names: ResourceClassNames,
    outcome: StatementOutcome,
) -> None:
    if outcome.rowcount != len(part):
        _explain(script.connection, demands, part, names)


class _DemandKind(NamedTuple):
    """Hold the values that make demands of one class equal; mostly, all demands of a batch of claims are equal."""

    class_id: int
    growth: int
    smallest: int
    largest: int
    #: The greatest common divisor of the new amounts: a step divides all of them if and only if it divides this.
    divisor: int

    @classmethod
    def of(cls, demand: Demand) -> "_DemandKind":
        """Return the kind of a demand; without new amounts, its values satisfy every unit rule."""
        amounts = demand.amounts
        smallest, largest = min(amounts, default=2**31 - 1), max(amounts, default=0)
        return cls(demand.pair[1], demand.growth, smallest, largest, math.gcd(*amounts))


def _statement(demands: Sequence[Demand], dialect: Dialect) -> str:
    """Return the guarded update of inventories.

    UPDATE inventories
       SET used = used + CASE WHEN resource_class_id = 0 THEN 1 WHEN resource_class_id = 1 THEN 512 END
     WHERE (resource_class_id = 0 AND resource_provider_id IN (7, 8, ...)
            AND used + 1 <= (total - reserved) * allocation_ratio
            AND 1 >= min_unit AND 1 <= max_unit AND 1 % step_size = 0)
        OR ...

    The numbers are part of the text: with six parameters for each pair, SQLAlchemy and the driver took longer than
    the database.
    """
    providers_of: dict[_DemandKind, list[int]] = {}
    for demand in demands:
        providers_of.setdefault(_DemandKind.of(demand), []).append(demand.pair[0])
    modulo = "%%" if dialect.paramstyle in {"format", "pyformat"} else "%"
    growth: list[str] = []
    touched: list[str] = []
    # In each class, the kind with the most providers comes last and does not name them again in CASE: of the rows that
    # WHERE selects, only its own are left.
    left = Counter(kind.class_id for kind in providers_of)
    for kind, provider_ids in sorted(providers_of.items(), key=lambda each: len(each[1])):
        here = f"resource_class_id = {kind.class_id} AND resource_provider_id IN ({', '.join(map(str, provider_ids))})"
        fits = f"used + {kind.growth} <= (total - reserved) * allocation_ratio AND " if kind.growth > 0 else ""
        touched.append(
            f"({here} AND {fits}{kind.smallest} >= min_unit AND {kind.largest} <= max_unit"
            f" AND {kind.divisor} {modulo} step_size = 0)"
        )
        left[kind.class_id] -= 1
        these = here if left[kind.class_id] else f"resource_class_id = {kind.class_id}"
        growth.append(f"WHEN {these} THEN {kind.growth}")
    changed = f"used + CASE {' '.join(growth)} END"
    return f"UPDATE inventories SET used = {changed} WHERE {' OR '.join(touched)}"  # noqa: S608 - only numbers


# --- Refusals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Refusal:
    demand: Demand
    asked: int
    free: float
    reason: str


def _explain(
    connection: Connection, demands: Sequence[Demand], part: Sequence[Demand], names: ResourceClassNames
) -> None:
    """Raise an error with the inventories that refused; return if none refused, but a row to shrink was missing."""
    found = {
        (provider_id, class_id): inventory
        for provider_id, held in providers.inventories_of(connection, {demand.pair[0] for demand in demands}).items()
        for class_id, inventory in held.items()
    }
    # The update may have increased `used` of a row already, and the same demand may not fit a second time. So the usage
    # before the update is read from the allocations, which are written later.
    held = _held(
        connection, [d.pair for d in demands if d.pair in found and d.exceeds(found[d.pair].used, found[d.pair])]
    )
    refusals = [refusal for demand in demands if (refusal := _refusal(demand, found.get(demand.pair), held))]
    missing = [demand.pair for demand in part if demand.pair not in found]
    if not refusals and missing:
        LOG.error("Allocations without inventories, by provider and resource class id: %s", missing)
        return
    if not refusals:
        # `used` exceeds the sum of the allocations: nothing can be claimed there until an operator has repaired it.
        LOG.error("Inventories with more used than allocated, by provider and resource class id: %s", held)
        refusals = [
            _Refusal(d, d.growth, 0.0, "what is used disagrees with the allocations") for d in part if d.growth > 0
        ]
    raise _capacity_exceeded(connection, refusals, names)


def _refusal(demand: Demand, inventory: InventoryRow | None, held: Mapping[Pair, int]) -> _Refusal | None:
    if inventory is None:
        # A demand that only shrinks, or passes from one consumer to another, needs no inventory.
        is_asked = bool(demand.amounts) or demand.growth > 0
        return _Refusal(demand, max(demand.amounts, default=demand.growth), 0.0, "no inventory") if is_asked else None
    used = held.get(demand.pair, inventory.used)
    free = inventory.capacity - used
    if rule := demand.breaks_unit_rules(inventory):
        return _Refusal(demand, max(demand.amounts), free, rule)
    if demand.exceeds(used, inventory):
        return _Refusal(demand, demand.growth, free, "not enough room")
    return None


def _held(connection: Connection, pairs: Iterable[Pair]) -> dict[Pair, int]:
    """Return the sum of the allocations of each pair."""
    wanted = dict.fromkeys(pairs, 0)
    # The providers are locked, and may have very many allocations of other classes.
    #
    # SELECT resource_provider_id, resource_class_id, SUM(used) FROM allocations
    #  WHERE resource_class_id IN (...) AND resource_provider_id IN (...)
    #  GROUP BY resource_provider_id, resource_class_id
    pair = (allocations.c.resource_provider_id, allocations.c.resource_class_id)
    query = select(*pair, func.sum(allocations.c.used)).group_by(*pair)
    query = query.where(allocations.c.resource_class_id.in_({class_id for _, class_id in wanted}))
    provider_ids = sorted({provider_id for provider_id, _ in wanted})
    for provider_id, class_id, amount in bulk.select_in(connection, query, pair[0], provider_ids):
        if (provider_id, class_id) in wanted:
            wanted[provider_id, class_id] = int(amount)
    return wanted


def _capacity_exceeded(
    connection: Connection, refusals: Sequence[_Refusal], names: ResourceClassNames
) -> errors.CapacityExceeded:
    uuids = providers.uuids_of(connection, {refusal.demand.pair[0] for refusal in refusals})
    listed: list[dict[str, Any]] = [
        {
            "provider_uuid": uuids[refusal.demand.pair[0]],
            "resource_class": names.name_of(refusal.demand.pair[1], connection),
            "asked": refusal.asked,
            "free": refusal.free,
            "reason": refusal.reason,
        }
        for refusal in refusals
    ]
    return errors.CapacityExceeded(
        provider_uuid=listed[0]["provider_uuid"],
        resource_class=listed[0]["resource_class"],
        count=len(listed),
        refusals=listed,
    )
