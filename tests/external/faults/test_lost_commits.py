"""Transactions that do not end, and COMMITs that are not answered or whose outcome is unknown, on MariaDB."""

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url, text
from support.databases.commit_wire import Wire, commit_wire  # noqa: F401 - a fixture
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import PutAllocations
from placement_store.schema import MAIN

#: What happens to the answer to a COMMIT.
LOSSES = pytest.mark.parametrize("loss", ["cut", "silent", "error 1180"])

#: A silent connection counts as lost a little after MariaDB has rolled back its transaction.
SHORT = {"statement_limit": 1.3, "answer_margin": 0.2, "idle_transaction": 1.0}


@pytest.fixture
def mariadb_url(migrated_mariadb: OnMariaDB) -> str:
    """The URL of a database with empty tables."""
    return migrated_mariadb.url(MAIN)


@pytest.fixture
def direct(mariadb_url: str) -> Iterator[Store]:
    """A store with a direct connection."""
    database = Database(mariadb_url, "main")
    yield Store(database)
    database.close()


@pytest.fixture
def store(direct: Store, mariadb_url: str, wire: Wire) -> Iterator[Store]:
    """The same store, connected through the wire."""
    url = make_url(mariadb_url).set(host="127.0.0.1", port=wire.port)
    database = Database(url.render_as_string(hide_password=False), "main", lock_wait=1.0, tries=3, **SHORT)
    yield Store(database)
    database.close()


@LOSSES
@pytest.mark.parametrize("passing", [True, False], ids=["after it took effect", "before it took effect"])
def test_a_write_whose_commit_was_lost_is_done_once_and_answered(
    direct: Store, store: Store, wire: Wire, passing: bool, loss: str
) -> None:
    host, uuid = direct.provider(VCPU=8), ids.fresh()
    put = PutAllocations(request_id="r1", consumer_uuid=uuid, wanted=store.wanted({host: {"VCPU": 2}}))

    wire.lose_next_commit(passing=passing, loss=loss)
    answer = store.dispatcher.call(put)

    assert wire.cuts == 1
    assert answer.consumer_generation == 1
    assert direct.consumer(uuid).generation == 1
    assert direct.used(host) == {"VCPU": 2}
    assert direct.dispatcher.call(put) == answer


@LOSSES
@pytest.mark.parametrize("passing", [True, False], ids=["after it took effect", "before it took effect"])
def test_an_acceptance_a_swap_and_a_release_whose_commits_were_lost_are_done_once(
    direct: Store, store: Store, wire: Wire, passing: bool, loss: str
) -> None:
    first, second = direct.provider(VCPU=8), direct.provider(VCPU=8)
    uuid, attempt, amount = ids.fresh(), ids.fresh(), {"VCPU": 2}
    claim_id = direct.claim(uuid, {first: amount}).claim_id
    wire.lose_next_commit(passing=passing, loss=loss)
    store.accept(uuid, claim_id, attempt)

    wire.lose_next_commit(passing=passing, loss=loss)
    swapped = store.swap(uuid, claim_id, {first: amount}, {second: amount}, leave_residue=True)
    assert swapped.residue_uuid == attempt
    assert direct.consumer(uuid).claim_id == swapped.claim_id
    wire.lose_next_commit(passing=passing, loss=loss)
    store.delete(attempt, for_good=True)

    assert wire.cuts == 3
    assert (direct.used(first), direct.used(second)) == ({"VCPU": 0}, {"VCPU": 2})
    assert direct.is_sound()


def test_a_duplicate_of_a_request_that_has_not_ended_is_refused_as_in_progress(direct: Store, store: Store) -> None:
    host, uuid = direct.provider(VCPU=8), ids.fresh()
    put = PutAllocations(request_id="r1", consumer_uuid=uuid, wanted=store.wanted({host: {"VCPU": 2}}))
    with direct.database.engine.connect() as connection:
        work = connection.begin()
        direct.requests._insert(connection, direct.requests._row(put, None))
        with pytest.raises(errors.RequestInProgress) as caught:
            store.dispatcher.call(put)
        assert caught.value.request_id == "r1"
        work.rollback()

    assert store.dispatcher.call(put).consumer_generation == 1


def test_a_write_of_a_locked_row_fails_in_bounded_time_and_may_be_repeated(direct: Store, store: Store) -> None:
    host, uuid = direct.provider(VCPU=8), ids.fresh()
    put = PutAllocations(request_id="r1", consumer_uuid=uuid, wanted=store.wanted({host: {"VCPU": 2}}))
    with direct.database.engine.connect() as connection:
        connection.execute(text("SELECT id FROM resource_providers FOR UPDATE"))
        with pytest.raises(errors.Overloaded):
            store.dispatcher.call(put)

    assert store.dispatcher.call(put).consumer_generation == 1
    assert direct.used(host) == {"VCPU": 2}
