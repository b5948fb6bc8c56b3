"""Heal consumers: set their claims and allocations to their owner's records, after the store has lost or changed them.

A heal is a write like any other: it takes the same locks and the same guarded update of inventories, so it never
over-commits. It makes no new claim: it writes the recorded one under its own id, accepted by the recorded attempt.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from moorage import errors
from moorage.db.columns import now
from moorage.messages import HealConsumers, Healed
from moorage.model import RecordedHold, SeenConsumer
from moorage.model.allocations import Amounts
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding, Pair
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import isolated_groups, move_split, released_amounts, residues
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import consumers as consumer_table
from placement_store.schema import reconciled
from placement_store.server_groups import rows as groups
from placement_store.server_groups.rows import GroupRow

LOG = logging.getLogger(__name__)


def _log(message: HealConsumers, _healed: Healed) -> None:
    LOG.warning("Healed: consumers %s", ", ".join(sorted(message.seen)))


@writes(HealConsumers, log=_log)
def heal(connection: Connection, message: HealConsumers, names: ResourceClassNames) -> Healed:
    """Set the allocations of these consumers to the recorded ones, for all of them or for none.

    :raises ConsumerGenerationConflict: a consumer has another generation or claim than the caller has seen.
    :raises ConsumerDeleted: a recorded consumer has been deleted for good, or its guest is known to be gone.
    :raises InvalidRequest: a recorded consumer was not seen, or is to be deleted as well; or the store knows a server
        group with another rule.
    :raises ProviderNotFound: a host's own provider does not exist, and the hold has amounts.
    :raises InvalidState: a pool does not exist, and the consumer does not have its amounts elsewhere.
    :raises CapacityExceeded: the missing amounts do not fit.
    :raises GroupRuleRefused: the rule of a server group forbids a member on its host.
    :raises StaleRead: something has changed since it was read; a new transaction may succeed.
    """
    holds = {hold.consumer_uuid: hold for hold in message.holds}
    _require_consistent(message, holds)
    # Before anything is locked, and in one order.
    bound = groups.bind(connection, (hold.group for hold in message.holds), path="$.holds")
    found = consumers.holdings(connection, message.seen)
    for uuid, seen in message.seen.items():
        _require_as_seen(uuid, seen, found.get(uuid))
    named = {uuid for hold in message.holds for uuid in (hold.root_provider_uuid, *hold.allocations)}
    keys = providers.keys_found(connection, named)
    # By pair, the amount that this write releases, less the amount that it has assigned to holds.
    spare: Counter[Pair] = Counter()
    for uuid, holding in found.items():
        if uuid not in holds or not _is_its_own(holds[uuid], holding):
            spare.update(holding.amounts)
    migrations = {hold.migration_of: hold for hold in message.holds if hold.consumer_type == "MIGRATION"}
    changes: list[ConsumerChange] = []
    for uuid, hold in holds.items():
        is_source = hold.consumer_type == "MIGRATION"
        other_side = holds.get(str(hold.migration_of)) if is_source else migrations.get(uuid)
        beside: Counter[Pair] = Counter()
        if other_side is not None:
            beside = _on_other_side(connection, hold, other_side, found.get(other_side.consumer_uuid), keys, names)
        changes.append(_held(connection, hold, found.get(uuid), keys, bound, names, spare, beside))
    for uuid in message.seen.keys() - holds.keys():
        other, for_good = found.get(uuid), uuid in message.for_good
        # A consumer that no record names is released, if it has anything.
        if for_good or (other is not None and (other.rows or other.claim_id)):
            changes.append(ConsumerChange(uuid=uuid, before=other, after={}, columns=UNCLAIMED, for_good=for_good))
    complete = partial(_complete, connection, message.holds)
    roots = dict(keys.values())
    allocations.write(connection, changes, names, roots=roots, before_feed=complete, groups=bound.values())
    held: Counter[Pair] = Counter()
    after: Counter[Pair] = Counter()
    for change in changes:
        held.update(change.held)
        after.update(change.after)
    return Healed(
        generations={
            change.uuid: 1 if change.before is None else change.before.generation + 1
            for change in changes
            if not change.for_good
        },
        released=move_split.as_allocations(connection, held - after, names),
    )


def _require_consistent(message: HealConsumers, holds: Mapping[str, RecordedHold]) -> None:
    for number, hold in enumerate(message.holds):
        if hold.consumer_uuid not in message.seen:
            raise errors.InvalidRequest(path=f"$.holds[{number}]", reason="it is not said how the consumer was seen")
        if (hold.claim_id is None) != (hold.consumer_type == residues.RESIDUE):
            raise errors.InvalidRequest(path=f"$.holds[{number}].claim_id", reason="a residue alone has no claim")
        if hold.claim_id is None and not hold.allocations:
            raise errors.InvalidRequest(path=f"$.holds[{number}].allocations", reason="a residue has amounts")
        if hold.claim_id is None and hold.accepted_by is None:
            raise errors.InvalidRequest(path=f"$.holds[{number}].accepted_by", reason="a residue is an attempt's")
    for number, uuid in enumerate(message.for_good):
        if uuid not in message.seen or uuid in holds:
            raise errors.InvalidRequest(path=f"$.for_good[{number}]", reason="it was not seen, or is to hold something")


def _require_as_seen(uuid: str, seen: SeenConsumer, holding: Holding | None) -> None:
    found = None if holding is None else holding.generation
    # A restored store issues generations for a second time: the claim id distinguishes the two.
    if found != seen.generation or (holding is not None and holding.claim_id != seen.claim_id):
        raise errors.ConsumerGenerationConflict(consumer_uuid=uuid, named=seen.generation, found=found)


# --- Consumers on record --------------------------------------------------------------------------------------------


def _held(
    connection: Connection,
    hold: RecordedHold,
    holding: Holding | None,
    keys: Mapping[str, ProviderKey],
    bound: Mapping[str, GroupRow],
    names: ResourceClassNames,
    spare: Counter[Pair],
    beside: Counter[Pair],
) -> ConsumerChange:
    tombstones.require_unburied(connection, hold.consumer_uuid, holding)
    if hold.claim_id is None and tombstones.buried(connection, [str(hold.accepted_by)]):
        # Its host has reported that it has no guest of this attempt any more.
        raise errors.ConsumerDeleted(consumer_uuid=str(hold.accepted_by))
    root = keys.get(hold.root_provider_uuid)
    # A claim without amounts needs no provider: the host may be lost, and its instance is to leave it.
    if root is None and hold.allocations:
        raise errors.ProviderNotFound(name=hold.root_provider_uuid)
    root_id = None if root is None else root.root_id
    own = None
    if holding is not None and _is_its_own(hold, holding):
        own = replace(holding, root_provider_id=root_id)
    before, missing = Counter({} if own is None else own.amounts), Counter[Pair]()
    if root_id is not None and hold.allocations:
        missing = _missing(connection, hold, own, root_id, keys, names, spare, beside)
    spare.subtract(missing)
    return ConsumerChange(
        uuid=hold.consumer_uuid,
        before=holding,
        after=before + missing,
        named=frozenset() if root is None else frozenset({root.id}),
        columns=_columns(hold, root_id, bound, own),
        claimed=hold.claim_id is not None and (holding is None or holding.claim_id != hold.claim_id),
        # The record has the amounts of the claim: unit rules were verified when it was made.
        inherited=True,
    )


def _is_its_own(hold: RecordedHold, holding: Holding) -> bool:
    """Return whether a consumer keeps its allocations.

    If it has another claim, they cannot be distinguished from foreign ones: all are replaced. If it has no claim or the
    recorded one, allocations beyond the record are foreign, and stay.
    """
    return holding.claim_id in (None, hold.claim_id)


def _missing(
    connection: Connection,
    hold: RecordedHold,
    own: Holding | None,
    root_id: int,
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
    spare: Counter[Pair],
    beside: Counter[Pair],
) -> Counter[Pair]:
    """Return the recorded amounts that a consumer lacks, on their provider or elsewhere in its tree.

    :param beside: see :func:`_on_other_side`.
    """
    wanted = dict(released_amounts.claimed_with(connection, hold.allocations, names))
    gone = {uuid: wanted.pop(uuid) for uuid in hold.pools if uuid in wanted and uuid not in keys}
    there: Counter[Pair] = Counter()
    in_tree: set[int] = set()
    if own is not None:
        in_tree = released_amounts.providers_on_host(connection, own)
        there = +released_amounts.locate(connection, own, wanted, keys, in_tree, names)
    beyond = Counter({} if own is None else own.amounts) - there
    elsewhere = beyond - move_split.within(beyond, in_tree) + beside
    _require_held_elsewhere(connection, hold, gone, elsewhere, names)
    claimed, of_deleted = released_amounts.numbered(connection, wanted, keys, names)
    of_tree = move_split.within(claimed, {key.id for key in keys.values() if key.root_id == root_id})
    tree_ids = providers.tree_ids(connection, [root_id])
    lacking = of_deleted + _by_class(of_tree) - _by_class(move_split.within(there, tree_ids))
    roots = dict(keys.values())
    # What a reshape has moved in the pools' own trees is not lacking.
    pools = move_split.not_found(connection, claimed - of_tree, there, roots)
    pools = move_split.not_found(connection, pools, beside, roots)
    found = _spread(connection, lacking, claimed - there, tree_ids, spare)
    return found + _spread_over_pools(connection, pools, roots, spare)


def _on_other_side(
    connection: Connection,
    hold: RecordedHold,
    other: RecordedHold,
    holding: Holding | None,
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the amounts of pools that the other side of a move may hold for this one.

    On a pool that both sides use, the instance holds the larger of both amounts. The cell's record takes a pool for
    shared by the names of the providers. But a reshape of the pool before the destination was claimed decides it: the
    instance may hold what the record has for the migration, or the migration what it has for the instance.

    :param other: the record of the other side, which has this ``holding``.
    """
    is_source = hold.consumer_type == "MIGRATION"
    if holding is None or not _is_its_own(other, holding):
        return Counter()
    recorded = released_amounts.claimed_with(connection, other.allocations, names)
    roots = providers.roots_of(connection, {provider_id for provider_id, _ in holding.rows})
    source = keys.get((hold if is_source else other).root_provider_uuid)
    outside = {provider_id for provider_id, root_id in roots.items() if source is None or root_id != source.root_id}
    held = move_split.within(holding.amounts, outside)
    if is_source:
        # Only of pools that the destination uses: elsewhere, the instance has foreign allocations.
        claimed, _ = released_amounts.numbered(connection, recorded, keys, names)
        used = released_amounts.by_root(connection, claimed)
        return Counter({pair: amount for pair, amount in held.items() if (roots[pair[0]], pair[1]) in used})
    in_tree = released_amounts.providers_on_host(connection, holding)
    return held - released_amounts.locate(connection, holding, recorded, keys, in_tree, names)


def _by_class(amounts: Mapping[Pair, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for (_, number), amount in amounts.items():
        found[number] += amount
    return found


def _require_held_elsewhere(
    connection: Connection,
    hold: RecordedHold,
    gone: Amounts,
    beyond: Mapping[Pair, int],
    names: ResourceClassNames,
) -> None:
    """Verify that a consumer still has the amounts of deleted pools: a reshape must have moved them before.

    :param beyond: its allocations outside its host's tree that are not those of other pools.
    :raises InvalidState: it has not, and nothing shows which providers have the pool's inventory now.
    """
    elsewhere = _by_class(beyond)
    for uuid, resources in gone.items():
        for name, amount in resources.items():
            number = names.id_of(name, connection)
            elsewhere[number] -= amount
            if elsewhere[number] < 0:
                raise errors.InvalidState(
                    reason=f"consumer {hold.consumer_uuid} lacks {amount} {name} of the pool {uuid}, which does not "
                    "exist. Create a provider with this uuid: if a reshape had emptied the pool, without inventories, "
                    "and below a provider of the tree that has its inventory now. Then repeat"
                )


def _spread_over_pools(
    connection: Connection, lacking: Counter[Pair], roots: Mapping[int, int], spare: Counter[Pair]
) -> Counter[Pair]:
    """Distribute amounts of pools over the pools' own trees, to which a reshape may have moved their inventories.

    A pool below another provider keeps its amounts as long as it has the class, and never passes them to the root: its
    tree may be that of a host.
    """
    present = providers.inventories_of(connection, {pool_id for pool_id, _ in lacking})
    found: Counter[Pair] = Counter()
    by_root: dict[int, Counter[Pair]] = {}
    for (pool_id, number), amount in lacking.items():
        is_kept = pool_id != roots[pool_id] and number in present.get(pool_id, {})
        place = found if is_kept else by_root.setdefault(roots[pool_id], Counter())
        place[pool_id, number] = amount
    for root_id, claimed in sorted(by_root.items()):
        tree_ids = providers.tree_ids(connection, [root_id])
        if root_id not in {pool_id for pool_id, _ in claimed}:
            tree_ids.remove(root_id)
        found += _spread(connection, _by_class(claimed), claimed, tree_ids, spare)
    return found


def _spread(
    connection: Connection,
    lacking: Counter[int],
    claimed: Mapping[Pair, int],
    tree_ids: Sequence[int],
    spare: Counter[Pair],
) -> Counter[Pair]:
    """Distribute amounts by class over a tree: first to the providers they were claimed from, then by free capacity.

    An amount that fits nowhere is assigned to a provider that has the class, or that it was claimed from: the guarded
    update of its inventory then refuses it.
    """
    inventories = providers.inventories_of(connection, tree_ids)
    found: Counter[Pair] = Counter()
    for number, amount in sorted(lacking.items()):
        having = [one for one in tree_ids if number in inventories.get(one, {})]
        by_claim = [one for one in having if (one, number) in claimed]
        # A reshape may have removed the class from the provider it was claimed from.
        rows = {one: inventories[one][number] for one in having}
        # What the write itself releases is free even on an over-committed provider: usage does not grow there.
        free = {one: max(0, int(row.capacity) - row.used) + spare[one, number] for one, row in rows.items()}
        left = amount
        for one in by_claim:
            here = min(left, claimed[one, number], max(0, free[one]))
            found[one, number] += here
            left -= here
        for one in sorted(having, key=lambda one: -free[one]):
            here = min(left, max(0, free[one] - found[one, number]))
            found[one, number] += here
            left -= here
        if left:
            stands = (by_claim or having or [pair[0] for pair in claimed if pair[1] == number] or list(tree_ids))[0]
            found[stands, number] += left
    return +found


def _columns(
    hold: RecordedHold, root_id: int | None, bound: Mapping[str, GroupRow], own: Holding | None
) -> dict[str, Any]:
    """Return the columns of a consumer as recorded; without a recorded group it stays in its present one."""
    # A reshape may have moved the isolated groups: the stored ones count.
    isolated = None if own is None or own.claim_id != hold.claim_id else own.isolated_groups
    group: dict[str, int | None] = {} if hold.group is None else {"consumer_group_id": bound[hold.group.uuid].id}
    if hold.claim_id is None:
        group = {"consumer_group_id": None}
    fields = {name: value for name, value in UNCLAIMED.items() if name not in ("accepted_at", "claimed_at")}
    return {
        **fields,
        "claim_id": hold.claim_id,
        "root_provider_id": root_id,
        "accepted_by": hold.accepted_by,
        "accepted_host": hold.accepted_host,
        "owner": hold.owner,
        "project_id": hold.project_id,
        "user_id": hold.user_id,
        "consumer_type": hold.consumer_type,
        "migration_of": hold.migration_of,
        # What is missing is placed where it was claimed, if it fits.
        "source_amounts": None,
        "known_over_rpc": True,
        "isolated_groups": isolated or isolated_groups.encoded(hold.isolated),
        **group,
    }


def _complete(connection: Connection, holds: Sequence[RecordedHold]) -> None:
    """Verify the residues that have been written, set missing times of acceptance, and remove outdated records.

    These are the amounts of the source of a move, and what the reconciler has found about the claims before.

    :raises StaleRead: the guest of a residue is gone.
    """
    for hold in holds:
        if hold.claim_id is None:
            # Only after the write: see `require_unreported`.
            residues.require_unreported(connection, str(hold.accepted_by))
    uuids = sorted(hold.consumer_uuid for hold in holds)
    table = consumer_table.c
    # So that a later repetition of the acceptance changes nothing.
    # UPDATE consumers SET accepted_at = :now WHERE uuid IN (...) AND accepted_by IS NOT NULL AND accepted_at IS NULL
    lost = consumer_table.update().where(table.accepted_by.is_not(None), table.accepted_at.is_(None))
    bulk.change_in(connection, lost.values(accepted_at=now()), table.uuid, uuids)
    # Also of migrations that are not healed themselves, since the record names amounts of the instance too.
    recorded = consumer_table.update().where(table.source_amounts.is_not(None))
    bulk.change_in(connection, recorded.values(source_amounts=None), table.migration_of, uuids)
    # The reconciler examines a claim again even if it has released it: without a host's acceptance it is in doubt.
    claim_ids = sorted(hold.claim_id for hold in holds if hold.claim_id is not None)
    bulk.change_in(connection, reconciled.delete(), reconciled.c.claim_id, claim_ids)
