"""What others have put on consumers that are about to go, told apart from what the consumers were claimed with."""

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from sqlalchemy import Connection

from moorage import errors
from moorage.model import AllocationRequest
from placement_store.allocations.consumers import Holding, Pair
from placement_store.claims import move_split, released, residues
from placement_store.claims.move_split import Places
from placement_store.claims.released import Amounts
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey


def among(
    connection: Connection,
    instance: Holding | None,
    migrations: Collection[Holding],
    claimed_with: Mapping[str, AllocationRequest],
    names: ResourceClassNames,
) -> dict[str, Counter[Pair]]:
    """Return, by consumer, what an instance and its migrations hold beyond what their claims were made with.

    What a residue holds is its guest's, and what a claim holds that is not named cannot be told apart: neither has
    any such part.

    :param claimed_with: by claim, what was claimed with it.
    """
    requests = {claim_id: _present(request, names, connection) for claim_id, request in claimed_with.items()}
    keys = providers.keys_found(connection, {uuid for amounts in requests.values() for uuid in amounts})
    going = ([] if instance is None else [instance]) + list(migrations)
    found = {one.uuid: _beyond(connection, one, requests, keys, names) for one in going}
    moved = next((one for one in migrations if one.claim_id in requests), None)
    if instance is not None and moved is not None and instance.claim_id in requests:
        # What both sides use of a pool is counted once.
        held, claimed = requests[str(moved.claim_id)], requests[str(instance.claim_id)]
        places = Places.of(keys, moved.root_provider_id, instance.root_provider_id, held, claimed)
        parts = move_split.of_a_move(connection, instance, moved, held, claimed, places, names)
        found |= {instance.uuid: parts.extras, moved.uuid: parts.left_extras}
    return found


def _present(request: AllocationRequest, names: ResourceClassNames, connection: Connection) -> Amounts:
    """Return what was claimed, without classes that have been deleted since: nobody holds anything of them."""
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
    """Return what one consumer holds beyond its claim, and beyond what other claims named explain outside its host.

    Somebody may have taken a claim away and left what it held of pools, or ended one half of a move and not the other.
    """
    if residues.is_one(holding) or (holding.claim_id is not None and holding.claim_id not in requests):
        return Counter()
    if not holding.known_over_rpc:
        # Nothing has been claimed for it, or it was deleted before: what it holds has been told apart already.
        return Counter(holding.amounts)
    in_tree = released.on_host(connection, holding)
    own: Counter[Pair] = Counter()
    for claim_id, amounts in requests.items():
        if claim_id == holding.claim_id:
            own |= released.located(connection, holding, amounts, keys, in_tree, names)
        else:
            elsewhere = {u: part for u, part in amounts.items() if u in keys and keys[u].id not in in_tree}
            own |= released.located(connection, holding, elsewhere, keys, (), names)
    return Counter(holding.amounts) - own
