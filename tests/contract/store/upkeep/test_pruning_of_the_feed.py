"""Test that a feed of any length is pruned in parts, and that no part reads the rest of it."""

import pytest
from sqlalchemy import select
from support.databases.rows_read import rows_read
from support.placement_store.builders import Store

from moorage.db.columns import now
from placement_store.db import change_feed
from placement_store.schema import changes

AT_ONCE, MANY, KEPT = 100, 5_000, 7
LONG_AGO, FAR_AHEAD = 1.0, 1e11


@pytest.fixture
def feed(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store whose feed has many old changes, with gaps, and a few new ones."""
    monkeypatch.setattr(change_feed, "PRUNED_AT_ONCE", AT_ONCE)
    rows = [
        {"id": 3 * number, "host_id": 1, "created_at": LONG_AGO if number <= MANY else FAR_AHEAD}
        for number in range(1, MANY + KEPT + 1)
    ]
    store.database.write(lambda connection: connection.execute(changes.delete()))
    store.database.write(lambda connection: connection.execute(changes.insert(), rows))
    return store


def test_only_old_changes_are_pruned_and_the_newest_of_them_is_kept(feed: Store) -> None:
    parts = []
    while part := feed.database.write(lambda connection: change_feed.prune(connection, 3600.0)):
        parts.append(part)
    assert parts == [*[AT_ONCE] * (MANY // AT_ONCE - 1), AT_ONCE - 1]
    left = feed.database.read(lambda connection: connection.scalars(select(changes.c.id).order_by(changes.c.id)).all())
    assert left == [3 * number for number in range(MANY, MANY + KEPT + 1)]


def test_old_changes_with_later_numbers_than_new_ones_are_pruned_with_them(feed: Store) -> None:
    # The clock was set back: the oldest changes seem to be new.
    early = changes.c.id <= 3 * 2 * AT_ONCE
    feed.database.write(
        lambda connection: connection.execute(changes.update().where(early).values(created_at=FAR_AHEAD))
    )
    assert feed.database.write(lambda connection: change_feed.prune(connection, 3600.0)) == AT_ONCE


def test_the_newest_change_is_kept_and_tells_a_reader_whether_others_were_pruned(store: Store) -> None:
    provider = store.provider(VCPU=8)
    before = store.database.read(change_feed.newest)
    for total in range(9, 12):
        store.set_inventories(provider, store.generation(provider), VCPU=total)
    last = store.database.read(change_feed.newest)

    change_feed.prune_all(store.database, -1.0)

    assert store.database.read(lambda connection: connection.scalars(select(changes.c.id)).all()) == [last]
    assert not store.database.read(lambda connection: change_feed.changes_since(connection, last)).is_pruned
    assert not store.database.read(lambda connection: change_feed.changes_since(connection, last - 1)).is_pruned
    assert store.database.read(lambda connection: change_feed.changes_since(connection, before)).is_pruned


def test_a_reader_of_a_pruned_feed_waits_for_the_numbers_before_the_first_new_change(store: Store) -> None:
    store.database.write(lambda connection: connection.execute(changes.delete()))
    rows = [{"id": 10, "host_id": 1, "created_at": LONG_AGO}, {"id": 20, "host_id": 2, "created_at": LONG_AGO}]
    store.database.write(lambda connection: connection.execute(changes.insert(), rows))
    # The transaction with number 21 has not been committed yet.
    late = changes.insert().values(id=22, host_id=3, created_at=now())
    store.database.write(lambda connection: connection.execute(late))

    change_feed.prune_all(store.database, 3600.0)

    found = store.database.read(change_feed.recent_changes)
    assert (found.go_on_from, [*found.gaps]) == (20, [22])


@pytest.mark.backends("mariadb")
def test_a_part_reads_about_as_many_changes_as_it_deletes(feed: Store) -> None:
    with feed.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE changes")
    deleted, read = rows_read(feed.database, lambda connection: change_feed.prune(connection, 3600.0), writing=True)
    assert deleted == AT_ONCE
    assert read < 5 * AT_ONCE
    feed.database.write(lambda connection: connection.execute(changes.delete().where(changes.c.created_at == LONG_AGO)))
    deleted, read = rows_read(feed.database, lambda connection: change_feed.prune(connection, 3600.0), writing=True)
    assert deleted == 0
    assert read < 20
