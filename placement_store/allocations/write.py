"""Write allocations: the one transaction that all puts, claims, swaps, moves, heals and deletes share.

Rows are locked in one order everywhere: providers by id, consumers by id, inventories, new consumers by uuid,
allocations, groups by id, the change feed. The lock on a provider's row protects all that belongs to the provider. A
consumer's allocations are read without a lock; the compare-and-swap of its generation fails if they have changed since.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, bindparam, select

from moorage import errors
from moorage.db.script import Script, scripted
from moorage.model import ProviderAmounts
from placement_store.allocations import capacity, consumers, tombstones
from placement_store.allocations.capacity import Demand
from placement_store.allocations.consumers import Holding, NewConsumer, Pair
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import allocations, resource_providers
from placement_store.server_groups import rules
from placement_store.server_groups.rows import GroupRow
from placement_store.server_groups.rules import Membership

_RESIZE = allocations.update().where(allocations.c.id == bindparam("row_id")).values(used=bindparam("amount"))


def numbered(
    requested: Mapping[str, Mapping[str, int]],
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
    connection: Connection,
) -> dict[Pair, int]:
    """Translate amounts by provider uuid and class name to amounts by the ids of provider and resource class.

    :raises ResourceClassNotFound: a class that is named does not exist.
    """
    return {
        (keys[uuid].id, names.id_of(name, connection)): amount
        for uuid, resources in requested.items()
        for name, amount in resources.items()
    }


def generations_named(
    requests: Iterable[Mapping[str, ProviderAmounts]], keys: Mapping[str, ProviderKey]
) -> dict[int, set[int]]:
    """Return the provider generations that these requests name, by provider id."""
    named: dict[int, set[int]] = {}
    for request in requests:
        for uuid, part in request.items():
            if part.generation is not None and uuid in keys:
                named.setdefault(keys[uuid].id, set()).add(part.generation)
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerChange:
    """Describe the change of one consumer's row and allocations in one write.

    ``before`` is the consumer as it was read, or null if it is to be created. ``after`` are all its allocations after
    the write. ``columns`` of its row are set. If they contain a new claim, ``claimed`` is true and its time is set too.
    ``unaccepted`` makes the write fail if a host has accepted the present claim. ``for_good`` writes the consumer's
    tombstone, even if it keeps foreign allocations. ``inherited`` amounts pass from another consumer in the same write:
    unit rules (``min_unit``, ``max_unit``, ``step_size``) do not apply to them.
    """

    uuid: str
    before: Holding | None
    after: Mapping[Pair, int]
    #: Providers that the caller has named: their generations are bumped, even if no amount changes there.
    named: frozenset[int] = frozenset()
    columns: Mapping[str, Any] = field(default_factory=dict)
    claimed: bool = False
    unaccepted: bool = False
    for_good: bool = False
    inherited: bool = False
    #: Whether unit rules are checked for amounts that do not change, too, as in Placement's API.
    measures_all: bool = False

    @property
    def held(self) -> dict[Pair, int]:
        """Return the consumer's allocations before the write."""
        return {} if self.before is None else self.before.amounts

    @property
    def is_plain(self) -> bool:
        """Return whether only the generation changes in the consumer's own row."""
        return self.common_columns == {}

    @property
    def common_columns(self) -> Mapping[str, Any] | None:
        """Return the columns, if nothing else but the generation changes in the consumer's own row; otherwise null.

        Consumers of which these are equal may be updated together.
        """
        return None if self.claimed or self.unaccepted or self.for_good or self.forgets else self.columns

    @property
    def forgets(self) -> bool:
        """Return whether the consumer's row is deleted with its last allocation: if only HTTP has ever written it."""
        if self.before is None or self.after:
            return False
        return not self.columns.get("known_over_rpc", self.before.known_over_rpc)

    @property
    def membership_before(self) -> Membership | None:
        """Return the server group membership of the consumer, or of the instance that it moves, before the write."""
        return self._membership({})

    @property
    def membership_after(self) -> Membership | None:
        """Return the membership after the write."""
        return None if self.for_good or self.forgets else self._membership(self.columns)

    def _membership(self, changed: Mapping[str, Any]) -> Membership | None:
        names = ("consumer_group_id", "root_provider_id", "migration_of")
        group_id, root_id, moved = (changed.get(name, getattr(self.before, name, None)) for name in names)
        return None if group_id is None else Membership(group_id, root_id, moved or self.uuid)

    @property
    def placements(self) -> set[int]:
        """Return the ids of the roots on which the consumer is counted as an instance before or after, but not both."""
        before = self._placement({})
        after = None if self.for_good or self.forgets else self._placement(self.columns)
        return {place[0] for place in (before, after) if place is not None} if before != after else set()

    def _placement(self, changed: Mapping[str, Any]) -> tuple[int, str | None] | None:
        names = ("claim_id", "root_provider_id", "migration_of", "consumer_type")
        claim_id, root_id, moved, kind = (changed.get(name, getattr(self.before, name, None)) for name in names)
        return None if claim_id is None or root_id is None or moved is not None else (root_id, kind)

    @property
    def differing(self) -> set[Pair]:
        """Return the pairs whose amount changes, to zero included."""
        return {pair for pair, _ in self.held.items() ^ self.after.items()}

    @property
    def growths(self) -> dict[Pair, int]:
        """Return by how much each differing amount grows; the number is negative if the amount shrinks."""
        held = self.held
        return {pair: self.after.get(pair, 0) - held.get(pair, 0) for pair in self.differing}

    @property
    def measured(self) -> set[Pair]:
        """Return the pairs whose amount must fit: those that change and, with ``measures_all``, all others."""
        return self.differing | self.after.keys() if self.measures_all else self.differing


def write(
    connection: Connection | Script,
    changes: Sequence[ConsumerChange],
    names: ResourceClassNames,
    *,
    relied_on: Mapping[int, Collection[int]] | None = None,
    roots: Mapping[int, int] | None = None,
    bumps_generations: bool = True,
    before_feed: Callable[[], None] | None = None,
    groups: Iterable[GroupRow] = (),
) -> None:
    """Write the changes of all these consumers, at most one for each; after an error the transaction is rolled back.

    In a script, the last statements run, and raise their errors, only when the caller runs the script.

    :param relied_on: the generations that providers must be at, by provider id.
    :param roots: the ids of the roots that providers were read with, by provider id; a provider with another root by
        now counts as changed.
    :param bumps_generations: whether the generations of the providers are bumped; their ``seq`` always is.
    :param before_feed: carries out the statements of the caller that follow this write and may wait for locks.
    :param groups: server groups that the caller has read in this transaction.
    :raises ProviderGenerationConflict: a provider is at another generation than ``relied_on`` names.
    :raises CapacityExceeded: an amount does not fit.
    :raises ConsumerDeleted: a consumer to be created has been deleted for good.
    :raises GroupRuleRefused: a consumer would be placed where the rule of its server group forbids it.
    :raises StaleRead: what was read has changed since; a new transaction may succeed.
    """
    # Providers whose generations the caller compares are locked and bumped as well, even if no amount changes.
    touched = providers_touched(changes) | set(relied_on or ())
    with scripted(connection) as script:
        served_by_pools = _roots_untouched(script.ahead, changes, touched, roots or {})
        touched |= served_by_pools
        providers.bump_generations(script, touched, by=int(bumps_generations), roots=roots, unless=served_by_pools)
        if relied_on:
            _compare_generations(script.connection, relied_on, bumped_by=int(bumps_generations))
        _write(script, changes, names)
        # After all other locks: a transaction that holds a group's row never waits for one that waits for that row.
        _verify_groups(script, changes, groups)
        if before_feed is not None:
            script.run()
            before_feed()
        # Last, after all that may wait: followers of the feed wait for a number only for a moment. A group's rule may
        # be verified in the same round trip, so that its refusal uses a number up, like every rollback after this.
        change_feed.record(script, provider_ids=touched)


def _write(script: Script, changes: Sequence[ConsumerChange], names: ResourceClassNames) -> None:
    # Existing consumers come before the inventories: only a successful compare-and-swap, with the providers locked,
    # proves that the amounts to be released are still allocated. New ones come after, so that a claim which does not
    # fit costs little.
    ids = _update_consumers(script, changes)
    capacity.take(script, _demands(changes), names)
    ids |= _create_consumers(script, changes)
    # Run the script before the allocations are written: a refusal is explained by the old ones.
    script.run()
    _write_rows(script, changes, ids)


def _verify_groups(script: Script, changes: Sequence[ConsumerChange], groups: Iterable[GroupRow]) -> None:
    # A plain change keeps the membership of its consumer.
    others = [change for change in changes if not change.is_plain]
    before = [membership for change in others if (membership := change.membership_before) is not None]
    after = [membership for change in others if (membership := change.membership_after) is not None]
    if before or after:
        rules.verify(script, before, after, {change.uuid for change in others}, groups)


def providers_touched(changes: Sequence[ConsumerChange]) -> set[int]:
    """Return the ids of the providers that a write of these changes locks and records in the change feed."""
    touched = {provider_id for change in changes for provider_id in change.named}
    return touched | {provider_id for change in changes for provider_id, _ in change.differing}


def _roots_untouched(
    connection: Connection, changes: Sequence[ConsumerChange], touched: set[int], roots: Mapping[int, int]
) -> set[int]:
    """Return the roots that gain or lose an instance, and in whose trees nothing is touched: pools serve it alone.

    A follower of the change feed counts the instances of a host again only if the feed has a provider of its tree. The
    lock on the root also keeps a host from being deleted while a claim is made there.

    :raises StaleRead: the host of a new claim has been deleted since it was read.
    """
    untouched = {root_id for change in changes for root_id in change.placements} - touched
    # Usually, the caller knows the roots of all touched providers, and nothing has to be read.
    untouched -= {roots[id_] for id_ in touched & roots.keys()}
    found = providers.roots_of(connection, untouched | (touched - roots.keys())) if untouched else {}
    if {change.columns["root_provider_id"] for change in changes if change.claimed} & untouched - found.keys():
        raise StaleRead
    # Earlier versions deleted roots that pools served alone: a server can still leave such a root.
    return (untouched & found.keys()) - {found[id_] for id_ in touched & found.keys()}


def _compare_generations(connection: Connection, relied_on: Mapping[int, Collection[int]], bumped_by: int) -> None:
    """Compare generations after they were bumped: the rows are locked now."""
    table = resource_providers
    query = select(table.c.id, table.c.uuid, table.c.generation)
    for row in bulk.select_in(connection, query, table.c.id, sorted(relied_on)):
        for named in relied_on[row.id]:
            if row.generation - bumped_by != named:
                raise errors.ProviderGenerationConflict(
                    provider_uuid=row.uuid, named=named, found=row.generation - bumped_by
                )


def _demands(changes: Sequence[ConsumerChange]) -> list[Demand]:
    """Return the net growth of each inventory over all consumers, in the order of providers and classes."""
    growth: Counter[Pair] = Counter()
    amounts: dict[Pair, list[int]] = {}
    for change in changes:
        held = change.held
        for pair in change.measured:
            wanted = change.after.get(pair, 0)
            growth[pair] += wanted - held.get(pair, 0)
            if wanted and not change.inherited:
                amounts.setdefault(pair, []).append(wanted)
    return [Demand(pair, growth[pair], tuple(amounts.get(pair, ()))) for pair in sorted(growth)]


def _update_consumers(script: Script, changes: Sequence[ConsumerChange]) -> dict[str, int]:
    """Update, bury or delete the existing consumers in the order of their ids; return the ids by uuid."""
    present = [(change.before.id, change, change.before) for change in changes if change.before is not None]
    ids = {change.uuid: id_ for id_, change, _ in present}
    if not present:
        return ids
    connection = script.connection
    present.sort(key=lambda one: one[0])
    # In few statements: a reshape bumps very many consumers, and all claims of the tree wait for it.
    for columns, run in groupby(present, key=lambda one: one[1].common_columns):
        changed = [(change, before) for _, change, before in run]
        if columns is not None and (len(changed) > 1 or not columns):
            consumers.bump_generations(connection, [before for _, before in changed], columns)
            continue
        for change, before in changed:
            _update_consumer(connection, change, before)
    return ids


def _update_consumer(connection: Connection, change: ConsumerChange, before: Holding) -> None:
    if change.for_good and change.after:
        tombstones.bury_keeping_row(connection, before, unaccepted=change.unaccepted)
    elif change.for_good:
        tombstones.bury(connection, change.uuid, before, unaccepted=change.unaccepted)
    elif change.forgets:
        consumers.forget(connection, before, unaccepted=change.unaccepted)
    else:
        consumers.bump_generation(
            connection, before, change.columns, claimed=change.claimed, unaccepted=change.unaccepted
        )


def _create_consumers(script: Script, changes: Sequence[ConsumerChange]) -> dict[str, int]:
    """Create the missing consumers, or only write their tombstones; return the ids of the created ones by uuid."""
    new: dict[str, NewConsumer] = {}
    for change in sorted((change for change in changes if change.before is None), key=lambda change: change.uuid):
        if change.for_good:
            tombstones.bury(script.connection, change.uuid, None)
        else:
            new[change.uuid] = NewConsumer(change.columns, change.claimed)
    return consumers.create(script, new) if new else {}


def _write_rows(script: Script, changes: Sequence[ConsumerChange], ids: Mapping[str, int]) -> None:
    """Delete, update and insert the allocations that differ; touch no other row."""
    gone: list[int] = []
    changed: list[dict[str, int]] = []
    new: list[dict[str, int]] = []
    for change in changes:
        rows = {} if change.before is None else change.before.rows
        for pair in sorted(change.differing):
            amount = change.after.get(pair)
            if amount is None:
                gone.append(rows[pair].id)
            elif pair in rows:
                changed.append({"row_id": rows[pair].id, "amount": amount})
            else:
                new.append(
                    {
                        "consumer_id": ids[change.uuid],
                        "resource_provider_id": pair[0],
                        "resource_class_id": pair[1],
                        "used": amount,
                    }
                )
    if gone:
        bulk.change_in(script.connection, allocations.delete(), allocations.c.id, sorted(gone))
    if changed:
        script.connection.execute(_RESIZE, sorted(changed, key=lambda row: row["row_id"]))
    bulk.insert(script, allocations, new)
