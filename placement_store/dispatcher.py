"""Dispatch each message of topic `placement` to the function of the store that serves it: bus, commands and HTTP."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from sqlalchemy import Connection

from moorage import errors
from moorage.batches import BatchItem
from moorage.messages import AcceptClaim, Done, GetResourceProvider
from moorage.messages.wire import Message, R
from placement_store import cells
from placement_store.allocations import read as allocations
from placement_store.candidates import listing
from placement_store.claims import claim, delete, end_move, heal, put, swap
from placement_store.claims import list as claim_list
from placement_store.db.store import Served, Store, Unstored, served_by
from placement_store.providers import aggregates, create, inventories, names, read, report, traits, tree, usages
from placement_store.reshapes import instructed_reshape, reshape
from placement_store.server_groups import rows as server_groups
from placement_store.upkeep import audit, pruning, reconciler_log, recount, services

#: The modules with functions that serve messages.
MODULES = (
    *(cells, listing, allocations, claim, claim_list, put, delete, swap, end_move, heal),
    *(create, read, tree, report, inventories, traits, aggregates, usages, names),
    *(reshape, instructed_reshape, server_groups, audit, recount, reconciler_log, services, pruning),
)


def _served(modules: tuple[ModuleType, ...]) -> dict[type[Message[Any]], Served]:
    found: dict[type[Message[Any]], Served] = {}
    functions = (value for module in modules for value in vars(module).values())
    for served in (served for function in functions for served in served_by(function)):
        if found.setdefault(served.message_type, served) is not served:
            raise TypeError(f"{served.message_type.method} is served twice")
    return found


#: The function that serves each message of the topic, with its description.
SERVED = _served(MODULES)


class Dispatcher(Store):
    """Serve all messages of the topic from one database: for the bus, for commands and for the HTTP API."""

    def handlers(self) -> Mapping[type[Message[Any]], Callable[[Any], Any]]:
        """Return the handler of each message, for a server on the bus."""
        return dict.fromkeys(SERVED, self.call)

    def call(self, message: Message[R]) -> R:
        """Serve a message and return the answer.

        :raises InvalidRequest: messages of this type are not served.
        :raises MoorageError: the error that the function raises.
        """
        served = _of(message)
        answer: R
        if served.transaction is None:
            answer = served.function(self, message)
        elif served.transaction == "read":
            answer = self.read(partial(self.run, message))
        else:
            answer = self._write(served, message)
        return self._log(message, answer)

    def accept_many(self, calls: Sequence[BatchItem[AcceptClaim, Done]]) -> list[Callable[[], Done] | None]:
        """Accept claims of messages that arrived together, each as :meth:`call` does.

        :return: for each message null; or, if it must be served alone, the function that does so.
        """
        requests: list[BatchItem[Unstored, Done]] = [
            BatchItem(Unstored(call.value.consumer_uuid, partial(self._answer, call.value)), call.context)
            for call in calls
        ]
        alone: list[Callable[[], Done] | None] = []
        for call, request, remaining in zip(calls, requests, self.unstored_many(requests), strict=True):
            if remaining is None:
                call.do(lambda message, request=request: self._log(message, request.outcome()))  # type: ignore[misc]
            alone.append(None if remaining is None else partial(self.call, call.value))
        return alone

    @staticmethod
    def _log(message: Message[R], answer: R) -> R:
        if (log := _of(message).log) is not None:
            log(message, answer)
        return answer

    def _write(self, served: Served, message: Any) -> Any:
        work = partial(self._answer, message)
        if served.is_stored:
            return self.once(message, work)
        return self.unstored(work) if served.row is None else self.unstored_together(served.row(message), work)

    def run(self, message: Message[Any], connection: Connection) -> Any:
        """Run the function that serves a message as a part of a transaction, and return its result.

        :raises MoorageError: the error that the function raises.
        """
        served = _of(message)
        names = {"names": self.classes} if served.takes_names else {}
        return served.function(connection, message, **names)

    def _answer(self, message: Any, connection: Connection) -> Any:
        """Make the change of a mutation and return the answer; see :func:`placement_store.db.store.writes`."""
        answer = self.run(message, connection)
        if answer is not None:
            return answer
        return Done() if message.reply_type() is Done else self.run(GetResourceProvider(uuid=message.uuid), connection)


def _of(message: Message[Any]) -> Served:
    try:
        return SERVED[type(message)]
    except KeyError:
        raise errors.InvalidRequest(path="$", reason=f"{message.method} is not served on {message.topic}") from None
