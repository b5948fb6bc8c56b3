"""How much of what is on record a consumer holds, wherever in its host's tree a reshape has moved it."""

from collections import Counter
from collections.abc import Iterator, Mapping

from moorage.model import RecordedHold
from moorage.model.amounts import Amounts


def shortages(hold: RecordedHold, held: Amounts, roots: Mapping[str, str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield provider, resource class, and the amounts recorded and found, where less is held than is on record.

    What is held of the host's tree counts together, and is named by the host's own provider. More than is on record is
    no matter: others have put it there.

    :param held: what the consumer holds, by provider and resource class.
    :param roots: the roots of providers that are none themselves.
    """
    root = hold.root_provider_uuid
    recorded: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for uuid, part in hold.allocations.items():
        place = uuid if uuid in hold.pools else root
        recorded.update({(place, name): amount for name, amount in part.resources.items()})
    for uuid, resources in held.items():
        place = root if roots.get(uuid, uuid) == root else uuid
        found.update({(place, name): amount for name, amount in resources.items()})
    for (uuid, name), amount in sorted(recorded.items()):
        if found[uuid, name] < amount:
            yield uuid, name, amount, found[uuid, name]
