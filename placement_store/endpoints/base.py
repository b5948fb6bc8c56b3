"""What all endpoints of the store have in common: reads, and writes that are done once for each request."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from moorage.db.database import Database
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredRequests
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import retry_on_stale_read
from placement_store.schema import requests

R = TypeVar("R")


class StoreEndpoint:
    """Serves some of the methods of topic `placement` from one database."""

    def __init__(self, database: Database, names: ResourceClassNames) -> None:
        self._database = database
        self._names = names
        self._requests = StoredRequests(database, requests)

    def _read(self, work: Callable[[Connection], R]) -> R:
        """Return what ``work`` reads."""
        return self._database.read(work)

    def _once(self, message: Mutation[R], work: Callable[[Connection], R]) -> R:
        """Do what a request asks for and store its answer with it, or return the answer stored before."""
        return retry_on_stale_read(lambda: self._requests.once(message, work).result)
