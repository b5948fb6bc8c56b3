"""Carry out orders to a cell exactly once; if an order is refused, later orders with its number are refused too."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from conductor.cell.records import order_numbers
from conductor.engine.order_requests import OrderRequests
from conductor.engine.steps import Operation
from conductor.engine.worker import Worker
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages.basis import NumberedOrder
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredAnswer, StoredRequests

R = TypeVar("R")


class CellRequests(OrderRequests):
    """The stored requests of one cell. Several cells may share a table: the ids in it are derived for each cell."""

    def __init__(self, database: Database, requests: StoredRequests, cell_uuid: str, worker: Worker) -> None:
        super().__init__(database, requests, worker)
        self._cell_uuid = cell_uuid

    def _stored(self, message: Mutation[R]) -> Mutation[R]:
        """Return a message with the request id under which its order is stored in this cell."""
        return msgspec.structs.replace(message, request_id=ids.derived(self._cell_uuid, message.request_id))

    def _carry_out_and_enqueue(
        self, message: Mutation[R], carry_out: Callable[[Mutation[R], list[Operation]], StoredAnswer[R]]
    ) -> R:
        """Carry out an order and queue its operations; if it is refused, record that its number was refused."""
        try:
            return super()._carry_out_and_enqueue(message, carry_out)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        except errors.CallerError:
            if isinstance(message, NumberedOrder) and message.order_number is not None:
                self._database.write(partial(order_numbers.refuse, cell_uuid=self._cell_uuid, message=message))
            raise
