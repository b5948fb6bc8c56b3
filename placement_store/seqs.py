"""Which rows of a table stand at which ``seq``: read of all of them, or compared by sums over blocks of them.

What a row is described with changes only together with its ``seq``. So whoever keeps rows in memory need not read them
to know that they are as they were, and not even every ``seq``: a database adds thousands of them up in less time than a
driver takes to hand over a hundred.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Table, func, select

#: So many successive ids are one block. Arbitrary: ten thousand rows are ten sums, and a block is read in milliseconds.
_BLOCK = 1024
#: A prime whose square, added up over all rows that there may ever be, is still a number of 64 bits.
_PRIME = 65_521


class Sums(NamedTuple):
    """What the rows of one block add up to, or of all of them.

    A ``seq`` only grows, and no id is given out twice. So, as long as none of the rows is gone, another ``seq`` of one
    and a row that has come are each told by these. Where as many rows have come as are gone, their ids are others:
    one or two of them differ in their sum or in the sum of their squares. Three and more could agree in both only if
    ids that were given out earlier were committed later, in between, and the ``seq`` would have to agree besides.
    """

    rows: int
    ids: int
    squares: int
    seqs: int


def pairs(connection: Connection, table: Table, blocks: Collection[int] | None = None) -> dict[int, int]:
    """Return the ``seq`` of every row by id, as one statement sees them; of all blocks or of some."""
    query = select(table.c.id, table.c.seq)
    if blocks is not None:
        query = query.where(_block_of(table.c.id).in_(sorted(blocks)))
    return dict(connection.execute(query).all())


def sums(connection: Connection, table: Table) -> dict[int, Sums]:
    """Return what each block adds up to, as one statement sees it."""
    block = _block_of(table.c.id).label("block")
    # SELECT id - id % 1024 AS block, COUNT(*), … FROM … GROUP BY block
    query = select(block, *_adding(table)).group_by(block)
    return {first: Sums(*map(int, added)) for first, *added in connection.execute(query)}


def sum_of_all(connection: Connection, table: Table) -> Sums:
    """Return what all rows add up to, as one statement sees it; for less than a sum of each block costs."""
    # Of no rows SQL has no sum.
    return Sums(*(int(added or 0) for added in connection.execute(select(*_adding(table))).one()))


def sums_of(known: Mapping[int, int]) -> dict[int, Sums]:
    """Return what each block of what is known adds up to: the ``seq`` of each row by id."""
    columns = _columns(known)
    blocks, place = np.unique(_block_of(columns[1]), return_inverse=True)
    # Added up as floats, which are exact as far as a block of such numbers goes.
    added = [np.bincount(place, column, len(blocks)).astype(np.int64).tolist() for column in columns]
    return {block: Sums(*of_block) for block, *of_block in zip(blocks.tolist(), *added, strict=True)}


def differing(connection: Connection, table: Table, known: Mapping[int, int]) -> set[int]:
    """Return the ids whose ``seq`` is another in the store than is known, or that only one of the two has."""
    # Mostly nothing differs.
    if sum_of_all(connection, table) == Sums(*(int(column.sum()) for column in _columns(known))):
        return set()
    here, there = sums_of(known), sums(connection, table)
    blocks = {block for block in here.keys() | there.keys() if here.get(block) != there.get(block)}
    found = pairs(connection, table, blocks)
    looked_at = {id_: seq for id_, seq in known.items() if _block_of(id_) in blocks}
    return {id_ for id_, _ in looked_at.items() ^ found.items()}


def _columns(known: Mapping[int, int]) -> Sequence[NDArray[np.int64]]:
    """Return what is added up of each row, in the order of :class:`Sums`."""
    ids = np.fromiter(known.keys(), np.int64, len(known))
    seqs = np.fromiter(known.values(), np.int64, len(known))
    return np.ones_like(ids), ids, (ids % _PRIME) ** 2, seqs


@cache
def _adding(table: Table) -> tuple[ColumnElement[Any], ...]:
    """Return what is added up: COUNT(*), SUM(id), SUM((id % 65521) * (id % 65521)), SUM(seq)."""
    id_ = table.c.id
    return func.count(), func.sum(id_), func.sum((id_ % _PRIME) * (id_ % _PRIME)), func.sum(table.c.seq)


def _block_of(id_: Any) -> Any:
    """Return the first id of the block that an id is in; of a number, an array or a column."""
    return id_ - id_ % _BLOCK
