"""The store for the API's operations: read and write transactions."""

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
    """One database, with its caches of names; one object serves all threads of a process.

    Operations call the same functions in these transactions as the RPC endpoints. Over HTTP a request has no id by
    which its client could repeat it, so no answer is stored; but each write has an id here, so that a write whose
    COMMIT was not answered can be told from somebody else's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests = StoredRequests(database, requests)
        self.classes = ResourceClassNames(database)
        self.traits = TraitNames(database)

    def read(self, work: Callable[[Connection], R]) -> R:
        """Run ``work`` in a read transaction and return its result.

        :raises StoreUnavailable: the database cannot be reached.
        """
        return self._database.read(work)

    def write(self, work: Callable[[Connection], R]) -> R:
        """Run ``work`` in one transaction, and retry in a new one after a conflict, a bounded number of times.

        :raises ClaimContention: every attempt met a conflict.
        :raises StoreUnavailable: the database cannot be reached.
        """
        return retry_on_stale_read(lambda: self._requests.once_unnamed("http", work))
