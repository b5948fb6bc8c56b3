"""Find the foreign allocations of consumers that are to be deleted: those beyond what they were claimed with."""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from sqlalchemy import Connection

from moorage import errors
from moorage.model import AllocationRequest
from placement_store.allocations.consumers import Holding, Pair
from placement_store.claims import move_split, released_amounts, residues
from placement_store.claims.move_split import MovePlaces
from placement_store.claims.released_amounts import Amounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


def foreign_allocations(
    connection: Connection,
    instance: Holding | None,
    migrations: Collection[Holding],
    claimed_with: Mapping[str, AllocationRequest],
    names: ResourceClassNames,
) -> dict[str, Counter[Pair]]:
    """Return the allocations of an instance and its migrations that exceed those of their claims, by consumer.

    A residue has none, since all of it is its guest's; nor has a consumer whose claim ``claimed_with`` does not name,
    since its allocations cannot be told apart.

    :param claimed_with: by claim id, the amounts that were claimed with it.
    """
    requests = {claim_id: _present(request, names, connection) for claim_id, request in claimed_with.items()}
    keys = providers.keys_found(connection, {uuid for amounts in requests.values() for uuid in amounts})
    going = ([] if instance is None else [instance]) + list(migrations)
    found = {one.uuid: _beyond(connection, one, requests, keys, names) for one in going}
    moved = next((one for one in migrations if one.claim_id in requests), None)
    if instance is not None and moved is not None and instance.claim_id in requests:
        # On a pool that both sides use, the larger of the two amounts counts and not their sum.
        held, claimed = requests[str(moved.claim_id)], requests[str(instance.claim_id)]
        places = MovePlaces.of(keys, moved.root_provider_id, instance.root_provider_id, held, claimed)
        parts = move_split.split_move(connection, instance, moved, held, claimed, places, names)
        # Overwrites the entries made above, which take the two apart.
        found |= {instance.uuid: parts.foreign_on_instance, moved.uuid: parts.foreign_on_migration}
    return found


def _present(request: AllocationRequest, names: ResourceClassNames, connection: Connection) -> Amounts:
    """Return the amounts of a claim without classes that have been deleted since: nothing is allocated of them."""
    found: dict[str, dict[str, int]] = {}
    for uuid, resources in move_split.amounts_of(request).items():
        for name, amount in resources.items():
            with suppress(errors.ResourceClassNotFound):
                names.id_of(name, connection)
                found.setdefault(uuid, {})[name] = amount
    return found


def _beyond(
    connection: Connection,
    holding: Holding,
    requests: Mapping[str, Amounts],
    keys: Mapping[str, ProviderKey],
    names: ResourceClassNames,
) -> Counter[Pair]:
    """Return the allocations of one consumer that neither its own claim nor, outside its host, another one explains.

    A write of another client may have cleared a claim and left its allocations of pools, or have ended one half of a
    move and not the other.
    """
    if residues.is_residue(holding) or (holding.claim_id is not None and holding.claim_id not in requests):
        return Counter()
    if not holding.known_over_rpc:
        # Either nothing was ever claimed for it, or it was deleted before and holds foreign allocations alone.
        return Counter(holding.amounts)
    in_tree = released_amounts.providers_on_host(connection, holding)
    own: Counter[Pair] = Counter()
    for claim_id, amounts in requests.items():
        if claim_id == holding.claim_id:
            own |= released_amounts.locate(connection, holding, amounts, keys, in_tree, names)
        else:
            elsewhere = {u: part for u, part in amounts.items() if u in keys and keys[u].id not in in_tree}
            own |= released_amounts.locate(connection, holding, elsewhere, keys, (), names)
    return Counter(holding.amounts) - own
