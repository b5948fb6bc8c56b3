"""Record where the amounts of a move's source are when a destination is claimed.

A caller names the amounts that the source was claimed with. A reshape may have moved them since, and at the end of the
move nothing else shows whether it did so before or after the destination was claimed.
"""

from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from moorage.model import ProviderAmounts
from moorage.model.allocations import Amounts
from placement_store.allocations.consumers import Holding
from placement_store.claims import released_amounts
from placement_store.db.names import ResourceClassNames


@dataclass(frozen=True, slots=True)
class SourceAmounts:
    """Hold the amounts of a move's source, and whether they are the recorded ones."""

    amounts: Amounts
    is_recorded: bool


class _SourceRecord(msgspec.Struct, frozen=True):
    #: The claim on the destination: a record of a former destination is not used.
    claim_id: str
    allocations: dict[str, ProviderAmounts]


def recording(claim_id: str, located: dict[str, ProviderAmounts]) -> dict[str, bytes]:
    """Return the column of a migration that records the amounts of its source when ``claim_id`` was claimed."""
    return {"source_amounts": msgspec.json.encode(_SourceRecord(claim_id, located), order="sorted")}


def of_move(
    connection: Connection, instance: Holding, migration: Holding, held: Amounts, names: ResourceClassNames
) -> SourceAmounts:
    """Return the recorded amounts of a move's source, or ``held``, which it was claimed with, if there is no record.

    There is none for the present destination if the former release claimed it, or if a heal has written the
    allocations. The former release neither writes nor removes a record when it swaps the destination.
    """
    unrecorded = SourceAmounts(held, is_recorded=False)
    if migration.source_amounts is None:
        return unrecorded
    record = msgspec.json.decode(migration.source_amounts, type=_SourceRecord)
    if record.claim_id != instance.claim_id:
        return unrecorded
    return SourceAmounts(released_amounts.claimed_with(connection, record.allocations, names), is_recorded=True)
