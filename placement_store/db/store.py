"""Mark the functions of the store that serve messages, and hold the database, the caches and the requests they need.

A decorator alone makes a function serve a message, for the bus, for commands and for HTTP:

- :func:`reads`: it reads, in one transaction;
- :func:`writes`: it writes, in one transaction that also stores the answer;
- :func:`handles`: it opens its transactions itself.

:mod:`placement_store.dispatcher` lists the modules with such functions and calls them.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from sqlalchemy import Connection

from moorage import errors
from moorage.batches import BatchItem
from moorage.db.database import Database
from moorage.db.shared_transactions import SharedTransactions
from moorage.messages.wire import Message, Mutation
from moorage.service.stored_requests import StoredRequests
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.db.retries import retry_on_stale_read, run_once
from placement_store.schema import requests

M = TypeVar("M", bound=Message[Any])
P = ParamSpec("P")
T = TypeVar("T")

#: A function of a connection and a message that serves the message in a transaction of the dispatcher. If it has a
#: parameter ``names``, it gets the names of resource classes.
InTransaction = Callable[Concatenate[Connection, M, P], T]

_SERVES = "_moorage_serves"


class Store:
    """Hold a database with its caches of names and its stored requests; one object serves all threads of a process.

    :raises ClaimContention: from each method that writes: every try met a conflict.
    :raises StoreUnavailable: from each method: the database cannot be reached.
    """

    def __init__(self, database: Database, classes: ResourceClassNames | None = None) -> None:
        self.database = database
        self.classes = ResourceClassNames(database) if classes is None else classes
        self.traits = TraitNames(database)
        self.requests = StoredRequests(database, requests)
        self._unstored: SharedTransactions[Unstored, Any] = SharedTransactions(database.write, _run_each, "writes")

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a read transaction and return its result."""
        return self.database.read(work)

    def once(self, message: Mutation[T], work: Callable[[Connection], T]) -> T:
        """Carry out a request and store its answer in the same transaction, or return the answer stored before."""
        return run_once(self.requests, message, work)

    def once_without_id(self, work: Callable[[Connection], T]) -> T:
        """Carry out an HTTP request; it has no id with which its client could repeat it, so no answer is stored.

        It has an id within the server, so that a write whose COMMIT was not answered can be distinguished from another.
        """
        return retry_on_stale_read(lambda: self.requests.once_without_id("http", work))

    def unnamed_together(
        self, work: Callable[[Connection, Sequence[T]], Sequence[Exception | None]], kind: str
    ) -> Callable[[T], None]:
        """Return a function that carries out a request as :meth:`once_without_id` does, with others of its kind.

        :param work: see :class:`~moorage.db.shared_transactions.SharedTransactions`.
        """
        run = partial(self.requests.once_without_id, "http")
        shared: SharedTransactions[T, None] = SharedTransactions(run, work, kind)
        return lambda value: retry_on_stale_read(lambda: shared.do(value))

    def unstored(self, work: Callable[[Connection], T]) -> T:
        """Carry out a request whose answer must be true each time: it is not stored, and a repetition is harmless."""
        return retry_on_stale_read(lambda: self.database.write(work))

    def unstored_together(self, row: str, work: Callable[[Connection], T]) -> T:
        """Carry out a request as :meth:`unstored` does, in one transaction with others that arrive meanwhile.

        :param row: the key of the one row that it writes; it writes nothing if it raises an error.
        """
        answer: T = self._unstored.do(Unstored(row, work))
        return answer

    def unstored_many(self, requests: "Sequence[BatchItem[Unstored, T]]") -> list[Callable[[], T] | None]:
        """Do as :meth:`unstored_together` for several requests; see :meth:`.SharedTransactions.do_many`."""
        return self._unstored.do_many(requests)


class Unstored(NamedTuple):
    """A request whose answer is not stored.

    :param row: the key of the one row that it writes.
    """

    row: str
    work: Callable[[Connection], Any]


def _run_each(connection: Connection, requests: Sequence[Unstored]) -> list[Any]:
    """Carry out requests in the order of their rows, so that no two transactions wait for each other."""
    outcomes: dict[int, Any] = {}
    for place, request in sorted(enumerate(requests), key=lambda each: each[1].row):
        try:
            outcomes[place] = request.work(connection)
        except errors.MoorageError as refusal:
            outcomes[place] = refusal
    return [outcomes[place] for place in range(len(requests))]


@dataclass(frozen=True, slots=True)
class Served:
    """Describe how a function serves a message; see the decorators."""

    message_type: type[Message[Any]]
    function: Callable[..., Any]
    #: Null for a function that opens its transactions itself.
    transaction: Literal["read", "write"] | None
    takes_names: bool
    is_stored: bool = True
    #: The key of the one row that it writes, if it may share a transaction with others.
    row: Callable[[Any], str] | None = None
    log: Callable[[Any, Any], None] | None = None


def reads(message_type: type[M]) -> Callable[[InTransaction[M, P, T]], InTransaction[M, P, T]]:
    """Serve a message by a function that reads the answer in one transaction."""
    return _marking(message_type, transaction="read")


def writes(
    message_type: type[M],
    *,
    is_stored: bool = True,
    row: Callable[[M], str] | None = None,
    log: Callable[[M, Any], None] | None = None,
) -> Callable[[InTransaction[M, P, T]], InTransaction[M, P, T]]:
    """Serve a message by a function that makes the change in one transaction, which also stores the answer.

    If the function returns nothing, the answer is `Done`, or the provider after the change.

    :param is_stored: false for a message whose answer must be true each time it is repeated.
    :param row: the key of the row, for a function whose answer is not stored and that writes only one row, and nothing
        if it raises an error. Messages that arrive together then share a transaction.
    :param log: called with the message and the answer when the transaction is committed.
    """
    return _marking(message_type, transaction="write", is_stored=is_stored, row=row, log=log)


def handles(*message_types: type[Message[Any]]) -> Callable[[Callable[[Store, M], T]], Callable[[Store, M], T]]:
    """Serve messages of these types by a function of the store that opens its transactions itself."""
    return _marking(*message_types, transaction=None)


def served_by(function: object) -> Sequence[Served]:
    """Return the descriptions of how a function serves messages, if it does."""
    return getattr(function, _SERVES, ()) if inspect.isfunction(function) else ()


def _marking(*message_types: type[Message[Any]], **how: Any) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        takes_names = "names" in inspect.signature(function).parameters
        setattr(function, _SERVES, [Served(one, function, takes_names=takes_names, **how) for one in message_types])
        return function

    return mark
