"""Carry out orders exactly once, and hand the operations that they begin to the worker."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from conductor.engine.steps import Operation
from conductor.engine.worker import Worker
from moorage import context
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredRequests

R = TypeVar("R")
#: The transaction of an order; it adds the operations that it has begun or redirected to the list.
Work = Callable[[Connection, list[Operation]], R]


class OrderRequests:
    """The stored requests of orders."""

    def __init__(self, requests: StoredRequests, worker: Worker) -> None:
        self._requests = requests
        self._worker = worker

    def once(self, message: Mutation[R], work: Work[R], answer: R | None = None) -> R:
        """Carry out an order, or return the stored answer of a repeated one; then take up the operations it has begun.

        :param answer: the result of ``work``, where it is known beforehand: then the request's row is written once.
        :raises RequestIdReused: the id was used for another content.
        :raises RequestInProgress: the same request is still running elsewhere.
        :raises MoorageError: ``work`` has raised it; nothing was changed.
        """
        begun: list[Operation] = []

        def transaction(connection: Connection) -> R:
            begun.clear()
            return work(connection, begun)

        stored = self._requests.once(message, transaction, answer)
        if not stored.replayed:
            self._worker.take_up(*begun)
        return stored.result


def origin(message: Mutation[R]) -> str:
    """Return the id of the operator's request that an order belongs to, for every log line about it."""
    return context.current().request_id or message.request_id
