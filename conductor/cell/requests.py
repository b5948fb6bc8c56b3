"""Carry out orders to a cell exactly once, and hand the operations that they begin to the worker."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
from sqlalchemy import Connection

from conductor.cell.records import order_numbers
from conductor.engine.steps import Operation
from conductor.engine.worker import Worker
from moorage import context, errors, ids
from moorage.db.database import Database
from moorage.messages.basis import NumberedOrder
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredRequests

R = TypeVar("R")
#: The transaction of an order; it adds the operations that it has begun or redirected to the list.
Work = Callable[[Connection, list[Operation]], R]


class CellRequests:
    """Stored requests of one cell. Several cells may share one table: the ids there are derived for each cell."""

    def __init__(self, database: Database, requests: StoredRequests, cell_uuid: str, worker: Worker) -> None:
        self._database = database
        self._requests = requests
        self._cell_uuid = cell_uuid
        self._worker = worker

    def once(self, message: Mutation[R], work: Work[R]) -> R:
        """Carry out an order, or return the stored answer of a repeated one; then take up the operations it has begun.

        :raises RequestIdReused: the id was used for another content.
        :raises RequestInProgress: the same request is still running elsewhere.
        :raises MoorageError: ``work`` has raised it; nothing was changed.
        """
        begun: list[Operation] = []

        def transaction(connection: Connection) -> R:
            begun.clear()
            return work(connection, begun)

        stored_as = ids.derived(self._cell_uuid, message.request_id)
        try:
            answer = self._requests.once(msgspec.structs.replace(message, request_id=stored_as), transaction)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        except errors.CallerError:
            if isinstance(message, NumberedOrder) and message.order_number is not None:
                self._database.write(partial(order_numbers.refuse, cell_uuid=self._cell_uuid, message=message))
            raise
        if not answer.replayed:
            self._worker.take_up(*begun)
        return answer.result


def origin(message: Mutation[R]) -> str:
    """Return the id of the operator's request that an order belongs to, for every log line about it."""
    return context.current().request_id or message.request_id
