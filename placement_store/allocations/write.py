"""The one way allocations are written: whoever puts, claims, swaps or deletes says what shall be held; this does it.

Rows are touched in one order everywhere: providers by id, consumers by id, inventories, new consumers by uuid,
allocations, the feed, groups by id. A provider's row is the lock on all that it has; what a consumer holds is read
without a lock and made sure of by comparing and swapping its generation.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, select

from moorage import errors
from moorage.model import ProviderAmounts
from placement_store.allocations import capacity, consumers, tombstones
from placement_store.allocations.capacity import Demand
from placement_store.allocations.consumers import Holding, NewConsumer, Pair
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import allocations, resource_providers
from placement_store.server_groups import rules
from placement_store.server_groups.rules import Standing


def numbered(
    requested: Mapping[str, Mapping[str, int]],
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
    connection: Connection,
) -> dict[Pair, int]:
    """Return amounts by the numbers of provider and resource class, given by provider uuid and class name.

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
    """Return the generations of providers that these requests name, by provider id."""
    named: dict[int, set[int]] = {}
    for request in requests:
        for uuid, part in request.items():
            if part.generation is not None and uuid in keys:
                named.setdefault(keys[uuid].id, set()).add(part.generation)
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one write makes of one consumer.

    ``before`` is the consumer as it was read, nothing if it is to be created. ``columns`` of its row are set, together
    with the time of the claim if the write brings one (``claimed``). ``unaccepted`` makes the write fail once a host
    has accepted the claim that stood; ``for_good`` buries the consumer, around what it shall hold all the same. What
    is ``inherited`` has been another consumer's, who loses it in the same write: no unit rule is asked of it any more.
    """

    uuid: str
    before: Holding | None
    after: Mapping[Pair, int]
    #: Providers that the caller has named; their generations are bumped even where nothing of them changes.
    named: frozenset[int] = frozenset()
    columns: Mapping[str, Any] = field(default_factory=dict)
    claimed: bool = False
    unaccepted: bool = False
    for_good: bool = False
    inherited: bool = False

    @property
    def held(self) -> dict[Pair, int]:
        """What the consumer held before."""
        return {} if self.before is None else self.before.amounts

    @property
    def is_plain(self) -> bool:
        """Whether of the consumer's own row nothing changes but its generation."""
        return not (self.columns or self.claimed or self.unaccepted or self.for_good or self.forgets)

    @property
    def forgets(self) -> bool:
        """Whether the consumer's row goes with its last allocation: as long as only HTTP knows it."""
        if self.before is None or self.after:
            return False
        return not self.columns.get("known_over_rpc", self.before.known_over_rpc)

    @property
    def stood(self) -> Standing | None:
        """Where the consumer, or the instance that it moves, was a member of its group."""
        if self.before is None:
            return None
        return _standing(self.uuid, {name: getattr(self.before, name) for name in _OF_STANDING})

    @property
    def stands(self) -> Standing | None:
        """Where it will be one."""
        if self.for_good or self.forgets:
            return None
        return _standing(
            self.uuid, {name: self.columns.get(name, getattr(self.before, name, None)) for name in _OF_STANDING}
        )

    @property
    def differing(self) -> set[Pair]:
        """The pairs of which the consumer will hold another amount, more, less, or nothing."""
        return {pair for pair, _ in self.held.items() ^ self.after.items()}


#: The columns of a consumer that say where it is a member of a group.
_OF_STANDING = ("consumer_group_id", "root_provider_id", "migration_of")


def _standing(uuid: str, columns: Mapping[str, Any]) -> Standing | None:
    if columns["consumer_group_id"] is None:
        return None
    return Standing(columns["consumer_group_id"], columns["root_provider_id"], columns["migration_of"] or uuid)


def write(
    connection: Connection,
    changes: Sequence[Change],
    names: ResourceClassNames,
    *,
    relied_on: Mapping[int, Collection[int]] | None = None,
    roots: Mapping[int, int] | None = None,
    bumps_generations: bool = True,
) -> None:
    """Write the changes of all these consumers, each of whom is named once, or raise and leave it to be rolled back.

    :param relied_on: the generations of providers that the caller has named.
    :param roots: the roots that providers were found to have; in another tree by now, they count as changed.
    :param bumps_generations: whether the generations of the providers are bumped; their ``seq`` always is.
    :raises ProviderGenerationConflict: a provider is at another generation than the caller relies on.
    :raises CapacityExceeded: it does not fit.
    :raises ConsumerDeleted: a consumer to be created has been deleted for good.
    :raises GroupRuleRefused: a consumer would come to where the rule of its group does not let it be.
    :raises StaleRead: what was read has changed since; a new transaction may succeed.
    """
    # Those that the caller relies on are locked and bumped as well, even if nothing of them changes.
    touched = providers_touched(changes) | set(relied_on or ())
    providers.bump_generations(connection, touched, by=int(bumps_generations), roots=roots)
    if relied_on:
        _compare_generations(connection, relied_on, bumped_by=int(bumps_generations))
    # Consumers that are there come before the inventories: whether these amounts are still what is to be given back is
    # known only now that the providers are locked and the consumer is found as it was read. New ones come after, so
    # that a claim which does not fit costs little.
    ids = _update_consumers(connection, changes)
    capacity.take(connection, _demands(changes), names)
    ids |= _create_consumers(connection, changes)
    _write_rows(connection, changes, ids)
    change_feed.record(connection, provider_ids=touched)
    # Last: whoever holds a group's row waits for nothing more, and so never for one who waits for that row.
    _verify_groups(connection, changes)


def _verify_groups(connection: Connection, changes: Sequence[Change]) -> None:
    # A consumer of whose row nothing changes stays where it is.
    described = [change for change in changes if not change.is_plain]
    before = [standing for change in described if (standing := change.stood) is not None]
    after = [standing for change in described if (standing := change.stands) is not None]
    rules.verify(connection, before, after, {change.uuid for change in described})


def providers_touched(changes: Sequence[Change]) -> set[int]:
    """Return the ids of the providers that a write of these changes locks, and tells the feed of."""
    touched = {provider_id for change in changes for provider_id in change.named}
    return touched | {provider_id for change in changes for provider_id, _ in change.differing}


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


def _demands(changes: Sequence[Change]) -> list[Demand]:
    """Net what all consumers give and take, by inventory, in the order of providers and classes."""
    growth: Counter[Pair] = Counter()
    amounts: dict[Pair, list[int]] = {}
    for change in changes:
        held = change.held
        for pair in change.differing:
            wanted = change.after.get(pair, 0)
            growth[pair] += wanted - held.get(pair, 0)
            if wanted and not change.inherited:
                amounts.setdefault(pair, []).append(wanted)
    return [Demand(pair, growth[pair], tuple(amounts.get(pair, ()))) for pair in sorted(growth)]


def _update_consumers(connection: Connection, changes: Sequence[Change]) -> dict[str, int]:
    """Update, bury or delete the existing consumers in the order of their ids; return the ids by uuid."""
    present = [(change.before.id, change, change.before) for change in changes if change.before is not None]
    ids = {change.uuid: id_ for id_, change, _ in present}
    if all(change.is_plain for _, change, _ in present):
        # A reshape changes very many in this way, and all who claim there wait for it.
        consumers.bump_generations(connection, [before for _, _, before in present])
        return ids
    for _, change, before in sorted(present, key=lambda one: one[0]):
        if change.for_good and change.after:
            tombstones.bury_around(connection, before, unaccepted=change.unaccepted)
        elif change.for_good:
            tombstones.bury(connection, change.uuid, before, unaccepted=change.unaccepted)
        elif change.forgets:
            consumers.forget(connection, before, unaccepted=change.unaccepted)
        else:
            consumers.bump_generation(
                connection, before, change.columns, claimed=change.claimed, unaccepted=change.unaccepted
            )
    return ids


def _create_consumers(connection: Connection, changes: Sequence[Change]) -> dict[str, int]:
    """Create the consumers that are not there, or bury them unseen; return the ids of the new ones by uuid."""
    new: dict[str, NewConsumer] = {}
    for change in sorted((change for change in changes if change.before is None), key=lambda change: change.uuid):
        if change.for_good:
            tombstones.bury(connection, change.uuid, None)
        else:
            new[change.uuid] = NewConsumer(change.columns, change.claimed)
    return consumers.create(connection, new) if new else {}


def _write_rows(connection: Connection, changes: Sequence[Change], ids: Mapping[str, int]) -> None:
    """Delete the rows that go, update those whose amount changes, insert those that come; touch no other."""
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
    for chunk in bulk.chunks(sorted(gone)):
        connection.execute(allocations.delete().where(allocations.c.id.in_(chunk)))
    if changed:
        connection.execute(_RESIZE, sorted(changed, key=lambda row: row["row_id"]))
    bulk.insert(connection, allocations, new)


_RESIZE = allocations.update().where(allocations.c.id == bindparam("row_id")).values(used=bindparam("amount"))
