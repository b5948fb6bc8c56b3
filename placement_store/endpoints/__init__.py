"""Serve the methods of topic `placement`: endpoints that call the functions of the store, one transaction each."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from moorage.db.database import Database
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredRequests
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import run_once
from placement_store.schema import requests

R = TypeVar("R")


class StoreEndpoint:
    """Hold the database and the stored requests, which all endpoints read from and write through."""

    def __init__(self, database: Database, names: ResourceClassNames) -> None:
        self._database = database
        self._names = names
        self._requests = StoredRequests(database, requests)

    def _once(self, message: Mutation[R], work: Callable[[Connection], R]) -> R:
        """Carry out a request and store its reply in the same transaction, or return the reply stored before."""
        return run_once(self._requests, message, work)
