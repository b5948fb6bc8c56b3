"""Serve the methods of topic `placement` about allocations, claims and moves, and about cells and their hosts."""

import logging

from msgspec import structs
from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.messages import (
    AcceptClaim,
    Claimed,
    ConsumerWritten,
    DeleteAllocations,
    Done,
    EndMove,
    GetAllocations,
    ListAllocationCandidates,
    ListCells,
    ListHostsDeclaredDown,
    LocateCell,
    MoveEnded,
    PostAllocations,
    PutAllocations,
    Released,
    SwapClaim,
)
from moorage.model import AllocationCandidates, Cell, Consumer
from placement_store import cells
from placement_store.allocations import read as consumer_list
from placement_store.candidates import listing
from placement_store.claims import claim as claims
from placement_store.claims import delete as deletes
from placement_store.claims import end_move
from placement_store.claims import put as puts
from placement_store.claims import swap as swaps
from placement_store.endpoints import StoreEndpoint

LOG = logging.getLogger(__name__)


class PlacementEndpoint(StoreEndpoint):
    """Serve cells, allocations, claims, moves and allocation candidates."""

    # --- Cells ------------------------------------------------------------------------------------------------------

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        """Return all cells by name."""
        found = cells.list_cells(self._database)
        return (
            [structs.replace(cell, database_connection=None) for cell in found] if message.without_databases else found
        )

    @serves(LocateCell)
    def locate_cell(self, message: LocateCell) -> Cell:
        """Return one cell.

        :raises CellNotFound: there is none of that name.
        """
        cell = self._database.read(lambda connection: cells.by_name(connection, message.name))
        return cell if message.with_database else structs.replace(cell, database_connection=None)

    @serves(ListHostsDeclaredDown)
    def list_hosts_declared_down(self, message: ListHostsDeclaredDown) -> list[str]:
        """Return those of the named hosts whose operator has declared them down, or deleted them."""
        return self._database.read(
            lambda connection: cells.hosts_declared_down(
                connection, message.cell_uuid, message.service_hosts, or_disabled=bool(message.or_disabled)
            )
        )

    # --- Allocations and claims -------------------------------------------------------------------------------------

    @serves(ListAllocationCandidates)
    def list_allocation_candidates(self, message: ListAllocationCandidates) -> AllocationCandidates:
        """Return allocation candidates; see :func:`placement_store.candidates.listing.list_candidates`."""
        return listing.list_candidates(self._database.read, self._names, message.request, message.limit)

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        """Return one consumer with its allocations.

        :raises ConsumerNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: consumer_list.get(connection, message.consumer_uuid, self._names))

    @serves(PutAllocations)
    def put_allocations(self, message: PutAllocations) -> ConsumerWritten:
        """Replace all allocations of one consumer; see :func:`placement_store.claims.put.put`."""
        uuid = message.consumer_uuid
        return self._once(message, lambda connection: puts.put(connection, {uuid: message.wanted}, self._names)[uuid])

    @serves(PostAllocations)
    def post_allocations(self, message: PostAllocations) -> dict[str, ConsumerWritten]:
        """Replace all allocations of several consumers at once; see :func:`placement_store.claims.put.put`."""
        return self._once(message, lambda connection: puts.put(connection, message.consumers, self._names))

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        """Release all allocations of a consumer; see :func:`placement_store.claims.delete.delete`."""
        released = self._once(message, lambda connection: deletes.delete(connection, message, self._names))
        LOG.info("Consumer %s has released all it held%s", message.consumer_uuid, _but(released.residue_uuid))
        return released

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        """Swap a claim from its host to the next one; see :func:`placement_store.claims.swap.swap`."""
        claimed = self._once(message, lambda connection: swaps.swap(connection, message, self._names))
        LOG.info(
            "The claim of consumer %s is now on %s%s",
            message.consumer_uuid,
            message.root_provider_uuid,
            _but(claimed.residue_uuid),
        )
        return claimed

    @serves(EndMove)
    def end_move(self, message: EndMove) -> MoveEnded:
        """Confirm or revert a move; see :func:`placement_store.claims.end_move.end`."""
        ended = self._once(message, lambda connection: end_move.end(connection, message, self._names))
        done = "confirmed" if message.outcome == "confirm" else "reverted"
        LOG.info(
            "Migration %s of consumer %s is %s%s",
            message.migration_uuid,
            message.consumer_uuid,
            done,
            _but(ended.residue_uuid),
        )
        return ended

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        """Record that an attempt's host has accepted a claim; see :func:`placement_store.claims.claim.accept`.

        Repeating it has the same effect, and its reply is not stored: a stored success would outlive the claim.
        """

        def work(connection: Connection) -> Done:
            claims.accept(connection, message)
            return Done()

        done = self._database.write(work)
        LOG.info("Host %s has accepted the claim of consumer %s", message.host, message.consumer_uuid)
        return done


def _but(residue_uuid: str | None) -> str:
    return "" if residue_uuid is None else f"; residue {residue_uuid} is left on its former host"
