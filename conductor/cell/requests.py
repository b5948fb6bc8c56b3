"""Orders to a cell: each is answered once, and what it begins is then worked on."""

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
#: What an order does in its transaction; it puts the operations that it has begun or moved into the list.
Work = Callable[[Connection, list[Operation]], R]


class CellRequests:
    """The stored requests of one cell: several cells may share one table, so each has ids of its own there."""

    def __init__(self, database: Database, requests: StoredRequests, cell_uuid: str, worker: Worker) -> None:
        self._database = database
        self._requests = requests
        self._cell_uuid = cell_uuid
        self._worker = worker

    def once(self, message: Mutation[R], work: Work[R]) -> R:
        """Carry an order out, or return what the same one returned before; then work on what it has begun.

        :raises RequestIdReused: the id was used for another content.
        :raises RequestInProgress: the same request is still running elsewhere.
        :raises MoorageError: what ``work`` has raised; nothing was changed.
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
    """Return the request that an order belongs to: it is on every log line of what follows."""
    return context.current().request_id or message.request_id
