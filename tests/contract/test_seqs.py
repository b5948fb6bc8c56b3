"""Sums over blocks of rows tell which rows stand at another `seq`, on SQLite and on MariaDB."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_rig import Rig, rig_on_each_store
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, create_engine, event
from sqlalchemy.pool import StaticPool

from placement_store import seqs
from placement_store.schema import hosts

rig = rig_on_each_store

_ROWS = Table("rows", MetaData(), Column("id", BigInteger, primary_key=True), Column("seq", BigInteger))
_ENGINE = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
_ROWS.create(_ENGINE)

#: Few and near to each other, and around the ends of blocks: so that sums of some agree with those of others.
_IDS = st.integers(1, 8) | st.integers(1020, 1028) | st.integers(2**31 - 2, 2**31 + 2)


@st.composite
def _before_and_after(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, int]]:
    """What is known of some rows, and the rows as they are now: each stays, moves on, goes or comes."""
    before, after = dict[int, int](), dict[int, int]()
    for id_ in draw(st.sets(_IDS, max_size=8)):
        seq = draw(st.integers(0, 3))
        fate = draw(st.sampled_from(["stays", "moves on", "goes", "comes"]))
        if fate != "comes":
            before[id_] = seq
        if fate != "goes":
            after[id_] = seq + (fate == "moves on") * draw(st.integers(1, 3))
    return before, after


def exact(before: dict[int, int], after: dict[int, int]) -> set[int]:
    return {id_ for id_, _ in before.items() ^ after.items()}


def put(connection: Connection, rows: dict[int, int]) -> None:
    connection.execute(_ROWS.delete())
    if rows:
        connection.execute(_ROWS.insert(), [{"id": id_, "seq": seq} for id_, seq in rows.items()])


def _agree_nevertheless(before: dict[int, int], after: dict[int, int]) -> bool:
    """Tell whether three rows and more have come with the sums of as many that are gone: as is said of the sums."""
    return len(before.keys() - after.keys()) > 2 and seqs.sums_of(before) == seqs.sums_of(after)


@given(_before_and_after())
def test_every_row_that_moves_on_goes_or_comes_is_told_and_no_other(
    changing: tuple[dict[int, int], dict[int, int]],
) -> None:
    before, after = changing
    with _ENGINE.begin() as connection:
        put(connection, after)
        assert seqs.sums(connection, _ROWS) == seqs.sums_of(after)
        if not _agree_nevertheless(before, after):
            assert seqs.differing(connection, _ROWS, before) == exact(before, after)


@pytest.fixture
def statements() -> Iterator[list[str]]:
    run: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: Sequence[object]) -> None:
        run.append(statement)

    event.listen(_ENGINE, "before_cursor_execute", note)
    yield run
    event.remove(_ENGINE, "before_cursor_execute", note)


def test_what_has_not_changed_costs_one_statement_and_no_row(statements: list[str]) -> None:
    rows = dict.fromkeys(range(1, 5000), 1)
    with _ENGINE.begin() as connection:
        put(connection, rows)
        statements.clear()
        assert seqs.differing(connection, _ROWS, rows) == set()
        assert len(statements) == 1
        assert len(seqs.sums(connection, _ROWS)) == 5


def test_only_the_blocks_that_differ_are_read(statements: list[str]) -> None:
    rows = dict.fromkeys(range(1, 5000), 1)
    with _ENGINE.begin() as connection:
        put(connection, rows)
        assert seqs.differing(connection, _ROWS, {**rows, 2050: 0}) == {2050}
        assert len(seqs.pairs(connection, _ROWS, {2048})) == 1024


def test_a_store_adds_up_large_numbers_as_this_process_does(rig: Rig) -> None:
    numbers = {1: 0, 2: 2**40, 1023: 5, 1024: 2**40, 2**40: 7, 2**40 + 1: 2**50}
    rows = [
        {
            "id": number,
            "seq": seq,
            "cell_uuid": f"cell{number}",
            "service_host": f"host{number}",
            "nodename": "node",
            "compute_node_uuid": f"node{number}",
            "agent": "agent",
            "availability_zone": "nova",
            "attributes": b"{}",
            "up": True,
            "heartbeat_at": 0.0,
            "created_at": 0.0,
            "updated_at": 0.0,
        }
        for number, seq in numbers.items()
    ]
    rig.database.write(lambda connection: connection.execute(hosts.insert(), rows))
    assert rig.database.read(lambda connection: seqs.pairs(connection, hosts)) == numbers
    assert rig.database.read(lambda connection: seqs.sums(connection, hosts)) == seqs.sums_of(numbers)
    known = {**numbers, 1024: 3, 4000: 1}
    del known[2]
    assert rig.database.read(lambda connection: seqs.differing(connection, hosts, known)) == {2, 1024, 4000}
