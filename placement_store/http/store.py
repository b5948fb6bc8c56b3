"""The store as the API's operations reach it: what is read, and whole transactions that write."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from moorage.db.database import Database
from moorage.service.stored_requests import StoredRequests
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.db.retries import retry_on_stale_read
from placement_store.schema import requests

R = TypeVar("R")


class Store:
    """One database, with the names that its numbers stand for; one object serves all threads of a process.

    The functions that operations call in these transactions are those of the RPC endpoints. Over HTTP a request has no
    id by which its client could repeat it, so no answer is stored; but each write has an id here, so that one whose
    COMMIT was answered by nobody is not taken for somebody else's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests = StoredRequests(database, requests)
        self.classes = ResourceClassNames(database)
        self.traits = TraitNames(database)

    def read(self, work: Callable[[Connection], R]) -> R:
        """Return what ``work`` reads.

        :raises StoreUnavailable: the database cannot be reached.
        """
        return self._database.read(work)

    def write(self, work: Callable[[Connection], R]) -> R:
        """Run ``work`` in one transaction, and again in a new one while others are faster, a bounded number of times.

        :raises ClaimContention: others were faster every time.
        :raises StoreUnavailable: the database cannot be reached.
        """
        return retry_on_stale_read(lambda: self._requests.once_unnamed("http", work))
