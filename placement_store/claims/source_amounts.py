"""Record where the amounts of a move's source are when a destination is claimed.

A caller names the amounts that the source was claimed with. A reshape may have moved them since, and at the end of the
move nothing else shows whether it did so before or after the destination was claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from moorage.model import AllocationRequest, ProviderAmounts
from moorage.model.allocations import Amounts
from placement_store.allocations.consumers import Holding
from placement_store.claims import released_amounts
from placement_store.db.names import ResourceClassNames


@dataclass(frozen=True, slots=True)
class SourceAmounts:
    """Hold the amounts of a move's source, and whether they are the recorded ones."""

    amounts: Amounts
    is_recorded: bool


def recording(located: Mapping[str, ProviderAmounts]) -> dict[str, bytes]:
    """Return the column of a migration that records the amounts of its source."""
    return {"source_amounts": msgspec.json.encode(located, order="sorted")}


def of_move(connection: Connection, migration: Holding, held: Amounts, names: ResourceClassNames) -> SourceAmounts:
    """Return the recorded amounts of a move's source, or ``held``, which it was claimed with, if there is no record.

    There is none if the former release began the move, or if a heal has written the allocations.
    """
    if migration.source_amounts is None:
        return SourceAmounts(held, is_recorded=False)
    located = msgspec.json.decode(migration.source_amounts, type=dict[str, ProviderAmounts])
    request = AllocationRequest(allocations=located)
    return SourceAmounts(released_amounts.claimed_with(connection, request, names), is_recorded=True)
