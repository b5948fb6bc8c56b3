"""Test the search for rows whose `seq` differs from the known one."""

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, MetaData, Table, create_engine
from sqlalchemy.pool import StaticPool

from placement_store.db import change_feed

_ROWS = Table("rows", MetaData(), Column("id", BigInteger, primary_key=True), Column("seq", BigInteger))
_ENGINE = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
_ROWS.create(_ENGINE)

_SEQS = st.dictionaries(st.integers(1, 12), st.integers(0, 3))


@given(_SEQS, _SEQS)
def test_exactly_the_changed_deleted_and_new_rows_are_found(known: dict[int, int], there: dict[int, int]) -> None:
    with _ENGINE.begin() as connection:
        connection.execute(_ROWS.delete())
        if there:
            connection.execute(_ROWS.insert(), [{"id": id_, "seq": seq} for id_, seq in there.items()])
        found = change_feed.differing_ids(connection, _ROWS, known)
    assert found == {id_ for id_ in known.keys() | there.keys() if known.get(id_) != there.get(id_)}


def test_rows_are_found_even_if_the_sums_of_ids_and_of_their_squares_agree() -> None:
    known, there = {1: 0, 5: 0, 6: 0}, {2: 0, 3: 0, 7: 0}
    assert sum(known) == sum(there)
    assert sum(id_**2 for id_ in known) == sum(id_**2 for id_ in there)
    with _ENGINE.begin() as connection:
        connection.execute(_ROWS.delete())
        connection.execute(_ROWS.insert(), [{"id": id_, "seq": seq} for id_, seq in there.items()])
        assert change_feed.differing_ids(connection, _ROWS, known) == known.keys() | there.keys()
