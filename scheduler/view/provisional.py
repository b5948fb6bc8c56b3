"""The providers with claims of this scheduler since their last read, and the ``seq`` that these claims explain."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from moorage.model import Resources

#: The version of each provider in the cache, by uuid; a read gives a provider a new version, a claim does not.
Versions = Mapping[str, int | None]


class AddedClaims(NamedTuple):
    """The claims of one request, in the form in which they are added to the host cache once they are written."""

    #: The amounts, each with the uuid of its provider.
    amounts: Sequence[tuple[str, Resources]]
    #: The versions of the providers before the transaction of the claims began.
    versions: Versions
    #: The number of additional instances on root providers, by uuid.
    placed: Mapping[str, int] = {}


class Expected(NamedTuple):
    """The ``seq`` that a provider has in the store if only this scheduler has changed it since it was read."""

    seq: int
    #: This scheduler's transactions since then, each of which has bumped it by one.
    transactions: frozenset[object]


class ProvisionalProviders:
    """The providers with claims of this scheduler since their last read, by id; for one thread at a time."""

    def __init__(self) -> None:
        #: By id, the transactions that have bumped its ``seq``; null if they are not known.
        self._transactions: dict[int, set[object] | None] = {}

    def __contains__(self, id_: int) -> bool:
        return id_ in self._transactions

    @property
    def ids(self) -> set[int]:
        """The ids of these providers."""
        return set(self._transactions)

    def add(self, id_: int, transaction: object, *, bumped: bool) -> None:
        """Note a claim of a transaction; null for a transaction that may not have bumped the ``seq`` exactly once.

        :param bumped: whether the transaction has bumped it at all.
        """
        transactions = self._transactions.setdefault(id_, set())
        if transaction is None:
            self._transactions[id_] = None
        elif bumped and transactions is not None:
            transactions.add(transaction)

    def remove(self, id_: int) -> None:
        """Remove a provider that was read or is gone."""
        self._transactions.pop(id_, None)

    def expected(self, seqs: Mapping[int, int]) -> dict[int, Expected]:
        """Return the expected state of these providers, without those whose transactions are not known.

        :param seqs: the ``seq`` at which each was last read, by id.
        """
        return {
            id_: Expected(seqs[id_] + len(transactions), frozenset(transactions))
            for id_, transactions in self._transactions.items()
            if transactions is not None
        }

    def settle(self, id_: int, settled: Collection[object]) -> None:
        """Remove transactions that the last read contains; remove the provider with its last transaction."""
        transactions = self._transactions.get(id_)
        if transactions is not None:
            transactions.difference_update(settled)
            if not transactions:
                del self._transactions[id_]
