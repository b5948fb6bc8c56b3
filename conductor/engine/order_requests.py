"""Carry out orders exactly once, and give the operations that they begin to the worker."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, exc

from conductor.engine.rows import grouped
from conductor.engine.steps import Operation
from conductor.engine.worker import Worker
from moorage import context, errors
from moorage.batches import BatchItem
from moorage.db.database import Database
from moorage.db.shared_transactions import SharedTransactions
from moorage.messages.wire import Mutation
from moorage.service.stored_requests import StoredAnswer, StoredRequests

R = TypeVar("R")
#: The transaction of an order; it adds the operations that it has begun or redirected to the list.
Work = Callable[[Connection, list[Operation]], R]
#: The function that records orders of one kind in one transaction; it returns the operations that each order has begun.
RecordOrders = Callable[[Connection, Sequence["SharedOrder"]], list[list[Operation]]]

#: The most rows of an order that shares a transaction. Arbitrary: the transaction's other orders wait for its rows.
_ROWS_OF_A_SHARED_ORDER = 64


class OrderPlan(NamedTuple):
    """How an order is recorded."""

    answer: Any
    #: The number of instances that it records; an order with many instances has its own transaction.
    rows: int
    #: The same function for all orders of a kind.
    record: RecordOrders


class SharedOrder(NamedTuple):
    """An order that may be recorded together with others."""

    message: Any
    #: The message with the request id under which it is stored.
    stored: Mutation[Any]
    #: The id of the operator's request that the order belongs to.
    origin: str
    plan: OrderPlan


class OrderRequests:
    """The stored requests of orders."""

    def __init__(self, database: Database, requests: StoredRequests, worker: Worker) -> None:
        self._database = database
        self._requests = requests
        self._worker = worker
        self._shared: SharedTransactions[SharedOrder, list[Operation]] = SharedTransactions(
            database.write, self._write, "orders"
        )

    def once(self, message: Mutation[R], work: Work[R]) -> R:
        """Carry out an order and queue the operations that it begins; for a repeated order return the stored answer.

        :raises RequestIdReused: the id was used for another content.
        :raises RequestInProgress: the same request is still running elsewhere.
        :raises MoorageError: ``work`` has raised it. Nothing was changed; a late copy of the message will be refused.
        """

        def carry_out(stored: Mutation[R], begun: list[Operation]) -> StoredAnswer[R]:
            def transaction(connection: Connection) -> R:
                begun.clear()
                return work(connection, begun)

            return self._requests.once_or_refused(stored, transaction)

        return self._carry_out_and_enqueue(message, carry_out)

    def refused(self, message: Mutation[R], refusal: errors.MoorageError) -> R:
        """Refuse an order because of a check before its transaction, or answer it if a copy has been carried out.

        :raises MoorageError: the refusal.
        """
        return self._requests.store_refusal(self._stored(message), refusal).result

    def once_together(self, message: Mutation[R], plan: OrderPlan) -> R:
        """Carry out an order as :meth:`once` does, in one transaction with other orders that arrive meanwhile."""
        run = self._shared.do if plan.rows <= _ROWS_OF_A_SHARED_ORDER else self._shared.alone

        def carry_out(stored: Mutation[R], begun: list[Operation]) -> StoredAnswer[R]:
            def transaction() -> R:
                begun[:] = run(SharedOrder(message, stored, origin(message), plan))
                answer: R = plan.answer
                return answer

            return self._requests.once_by(stored, transaction)

        return self._carry_out_and_enqueue(message, carry_out)

    def many_together(
        self, calls: Sequence[BatchItem[Any, Any]], planned: Callable[[Any], OrderPlan]
    ) -> list[Callable[[], Any] | None]:
        """Carry out orders that came in one message, in one transaction; give each call its answer or its error.

        :param planned: returns the plan of an order, or refuses it.
        :return: for each order that must be carried out alone, the function that does it; null for the others.
        """
        alone: list[Callable[[], Any] | None] = [None] * len(calls)
        shared: dict[int, BatchItem[SharedOrder, list[Operation]]] = {}
        for position, call in enumerate(calls):
            message = call.value
            try:
                plan = planned(message)
            except errors.MoorageError as refusal:
                call.fail(refusal)
                continue
            # Carried out alone, a repeated order finds its answer, and a faulty order gets its own error.
            alone[position] = partial(self.once_together, message, plan)
            if plan.rows <= _ROWS_OF_A_SHARED_ORDER:
                with context.adopted(call.context):
                    order = SharedOrder(message, self._stored(message), origin(message), plan)
                shared[position] = BatchItem(order, call.context)
        self._shared.do_many(list(shared.values()))
        begun: list[Operation] = []
        for position, item in shared.items():
            if not item.is_done:
                continue
            try:
                begun += item.outcome()
            except errors.Unavailable as fault:
                calls[position].fail(fault)
            except Exception:  # noqa: BLE001, S112 - carried out alone, it is raised again or was another one's
                continue
            else:
                calls[position].succeed(item.value.plan.answer)
            alone[position] = None
        self._worker.enqueue(*begun)
        return alone

    def _stored(self, message: Mutation[R]) -> Mutation[R]:
        """Return a message with the request id under which it is stored."""
        return message

    def _write(self, connection: Connection, orders: Sequence[SharedOrder]) -> list[list[Operation]]:
        self._requests.insert_rows(connection, [(order.stored, order.plan.answer) for order in orders])
        kinds = grouped((order.message.method, place) for place, order in enumerate(orders))
        begun: dict[int, list[Operation]] = {}
        for places in kinds.values():
            alike = [orders[place] for place in places]
            begun |= zip(places, alike[0].plan.record(connection, alike), strict=True)
        return [begun[place] for place in range(len(orders))]

    def _carry_out_and_enqueue(
        self, message: Mutation[R], carry_out: Callable[[Mutation[R], list[Operation]], StoredAnswer[R]]
    ) -> R:
        """Carry out an order under the request id that it is stored by, and queue the operations that it has begun.

        :raises RequestIdReused: an order with its id was carried out, and its stored answer is already deleted.
        """
        begun: list[Operation] = []
        try:
            stored = carry_out(self._stored(message), begun)
        except exc.IntegrityError as fault:
            # The uuids of an order's records are derived from its id; the records are kept longer than the answer.
            raise errors.RequestIdReused(request_id=message.request_id) from fault
        if not stored.replayed:
            self._worker.enqueue(*begun)
        return stored.result


def origin(message: Mutation[R]) -> str:
    """Return the id of the operator's request that an order belongs to, for every log line about it."""
    return context.current().request_id or message.request_id
