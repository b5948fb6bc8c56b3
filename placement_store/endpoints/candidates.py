"""The method of topic `placement` that says in which ways a request can be served."""

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import ListAllocationCandidates
from moorage.model import AllocationCandidates
from placement_store.candidates import listing
from placement_store.db.names import ResourceClassNames


class CandidateEndpoint:
    """Lists allocation candidates; it only reads."""

    def __init__(self, database: Database, names: ResourceClassNames) -> None:
        self._database = database
        self._names = names

    @serves(ListAllocationCandidates)
    def list_allocation_candidates(self, message: ListAllocationCandidates) -> AllocationCandidates:
        """Return ways to serve a request; see :func:`placement_store.candidates.listing.list_candidates`."""
        return listing.list_candidates(self._database.read, self._names, message.request, message.limit)
