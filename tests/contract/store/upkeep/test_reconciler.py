"""Test the reconciler: it releases claims only if their owner does not want them, never because of their age."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from oslo_config import cfg
from support.databases.rows_read import rows_read
from support.databases.statements import listening
from support.moorage.clock import Clock
from support.placement_store.builders import Store
from support.placement_store.move_builders import SMALL

from moorage import errors, ids, metrics
from moorage.bus.bus import Bus, serves
from moorage.config import options
from moorage.messages import HealConsumers, ListReconciled, Ownership, OwnsClaim
from moorage.model import ProviderAmounts, RecordedHold, SeenConsumer
from moorage.service.pruning import AT_ONCE
from moorage.service.stored_requests import Retention
from placement_store.schema import consumers, reconciled
from placement_store.upkeep import reconciler_log
from placement_store.upkeep.pruning import Pruning
from placement_store.upkeep.reconciler import Reconciler


class FakeOwner:
    """Wants the claims in `wanted`, does not want those in `unwanted`, and knows no others.

    A test replaces :attr:`before_answer` by a function to run before each answer.
    """

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.unwanted: set[str] = set()
        self.asked: list[OwnsClaim] = []
        self.before_answer: Callable[[OwnsClaim], object] = lambda message: None

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        self.asked.append(message)
        self.before_answer(message)
        if message.claim_id in self.wanted | self.unwanted:
            return Ownership(owned=message.claim_id in self.wanted)
        raise errors.InstanceNotFound(name=message.consumer_uuid)


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    return options.new(
        {
            "DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"},
            "placement": {"reconcile_after": 60.0, "reconcile_interval": 10.0},
        }
    )


@pytest.fixture
def bus(conf: cfg.ConfigOpts) -> Iterator[Bus]:
    bus = Bus(conf)
    yield bus
    bus.close()


@pytest.fixture
def owner(bus: Bus) -> FakeOwner:
    owner = FakeOwner()
    bus.server("conductor", "c1", [owner]).start()
    return owner


@pytest.fixture
def reconciler(conf: cfg.ConfigOpts, bus: Bus, store: Store) -> Reconciler:
    return Reconciler(conf, bus, store.dispatcher)


def old_claim(store: Store, host: str, **more: str | None) -> tuple[str, str]:
    """Make an old claim; return its consumer and its id."""
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}, **more).claim_id
    store.age("consumers", "claimed_at", 100.0)
    return uuid, claim_id


def found(store: Store) -> dict[str, tuple[str, str]]:
    """Return the reconciler's recorded outcome and reason for each claim."""
    return {a.claim_id: (a.outcome, a.reason) for a in store.dispatcher.call(ListReconciled())}


def next_round(store: Store, reconciler: Reconciler) -> None:
    """Run the round in which claims of earlier rounds are looked at again."""
    store.age("reconciled", "looked_at", 20.0)
    reconciler.round()


def test_a_claim_is_released_only_if_its_owner_does_not_want_it(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    unwanted, first = old_claim(store, host)
    wanted, second = old_claim(store, host)
    owner.unwanted, owner.wanted = {first}, {second}

    reconciler.round()

    assert {(m.consumer_uuid, m.claim_id) for m in owner.asked} == {(unwanted, first), (wanted, second)}
    assert store.held(unwanted) == {}
    assert store.held(wanted) == {host: SMALL}
    assert found(store) == {first: ("released", "its owner does not want it"), second: ("kept", "its owner wants it")}
    with pytest.raises(errors.ClaimReleased):
        store.accept(unwanted, first, ids.fresh())


def test_unaccepted_claims_are_counted_even_without_an_owner(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    def counted() -> float | None:
        reconciler.round()
        return metrics.REGISTRY.get_sample_value("moorage_claims_unaccepted")

    assert counted() == 0
    uuid, claim_id = old_claim(store, host)
    old_claim(store, store.provider(VCPU=2, MEMORY_MB=2048), owner=None)
    store.claim(ids.fresh(), {store.provider(VCPU=2, MEMORY_MB=2048): SMALL})
    assert counted() == 2
    store.accept(uuid, claim_id, ids.fresh())
    assert counted() == 1


def test_a_claim_unknown_to_its_owner_is_kept_and_reported_at_any_age(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    store.age("consumers", "claimed_at", 1e7)

    reconciler.round()
    next_round(store, reconciler)

    assert store.held(uuid) == {host: SMALL}
    assert found(store) == {claim_id: ("unknown", f"There is no instance {uuid}.")}
    assert len(owner.asked) == len({message.request_id for message in owner.asked}) == 2


def test_without_an_answer_all_claims_are_kept_and_a_round_stops_after_three_questions(
    store: Store, host: str, conf: cfg.ConfigOpts, reconciler: Reconciler
) -> None:
    conf.set_override("call_timeout", 0.3, "rpc")
    claims = dict(old_claim(store, store.provider(VCPU=2, MEMORY_MB=2048)) for _ in range(5))

    reconciler.round()

    assert [outcome for outcome, _ in found(store).values()] == ["unknown"] * 3
    reconciler.round()
    assert found(store).keys() == set(claims.values())
    assert all(store.consumer(uuid).claim_id == claim_id for uuid, claim_id in claims.items())


def test_a_round_is_ended_only_by_three_questions_in_a_row_without_an_answer(
    store: Store, owner: FakeOwner, reconciler: Reconciler
) -> None:
    def answer_every_third(_message: OwnsClaim) -> None:
        if len(owner.asked) % 3:
            raise errors.StoreUnavailable(schema="conductor", reason="it is away")

    owner.before_answer = answer_every_third
    for _ in range(6):
        old_claim(store, store.provider(**SMALL))

    reconciler.round()

    assert len(found(store)) == 6


def test_claims_of_a_dead_cell_do_not_delay_those_of_other_cells(
    store: Store, owner: FakeOwner, reconciler: Reconciler
) -> None:
    in_dead_cell = {old_claim(store, store.provider(**SMALL))[1] for _ in range(5)}
    _, other = old_claim(store, store.provider(**SMALL))

    def answer(message: OwnsClaim) -> None:
        if message.claim_id in in_dead_cell:
            raise errors.CellUnreachable(cell="dead", reason="it does not answer")

    owner.before_answer = answer
    reconciler.round()

    assert found(store).keys() == in_dead_cell | {other}


def test_a_round_that_has_taken_long_begins_no_further_claim(
    store: Store, owner: FakeOwner, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.wanted = {old_claim(store, store.provider(**SMALL))[1] for _ in range(3)}
    clock = Clock()
    monkeypatch.setattr("placement_store.upkeep.reconciler.time", SimpleNamespace(monotonic=clock))

    def answer(_message: OwnsClaim) -> None:
        clock.now += 60.0

    owner.before_answer = answer

    for number in (1, 2, 3):
        next_round(store, reconciler)
        assert len(owner.asked) == number


def test_refusals_of_the_owner_do_not_end_a_round(store: Store, owner: FakeOwner, reconciler: Reconciler) -> None:
    claims = dict(old_claim(store, store.provider(**SMALL)) for _ in range(5))

    reconciler.round()

    assert found(store).keys() == set(claims.values())


def test_claims_that_were_looked_at_longest_ago_come_first(
    store: Store, owner: FakeOwner, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placement_store.upkeep.reconciler._AT_ONCE", 1)
    owner.wanted = {old_claim(store, store.provider(**SMALL))[1] for _ in range(3)}

    for _ in range(3):
        next_round(store, reconciler)

    assert {message.claim_id for message in owner.asked} == owner.wanted


@pytest.mark.parametrize(("table", "column"), [("consumers", "claimed_at"), ("reconciled", "looked_at")])
def test_a_claim_is_looked_at_also_after_the_clock_was_set_back(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler, table: str, column: str
) -> None:
    uuid, claim_id = old_claim(store, host)
    owner.wanted = {claim_id}
    reconciler.round()
    store.age(table, column, -5000.0)
    owner.wanted, owner.unwanted = set(), {claim_id}

    next_round(store, reconciler)

    assert store.held(uuid) == {}


def test_only_old_unaccepted_claims_with_an_owner_are_asked_about(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    accepted, claim_id = old_claim(store, host)
    store.accept(accepted, claim_id, ids.fresh())
    old_claim(store, host, owner=None)
    store.put(ids.fresh(), {host: {"VCPU": 1}})
    store.age("consumers", "created_at", 1000.0)
    store.claim(ids.fresh(), {host: SMALL})

    reconciler.round()

    assert owner.asked == []
    assert found(store) == {}


def test_a_claim_accepted_while_its_owner_is_asked_is_left_alone(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    owner.unwanted = {claim_id}
    owner.before_answer = lambda message: store.accept(uuid, claim_id, ids.fresh())

    reconciler.round()

    assert store.held(uuid) == {host: SMALL}
    assert found(store) == {}


def test_a_claim_replaced_while_its_owner_is_asked_is_left_alone(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    owner.unwanted = {claim_id}
    owner.before_answer = lambda message: store.swap(uuid, claim_id, {host: SMALL}, {host: {"VCPU": 1}})

    reconciler.round()

    assert store.held(uuid) == {host: {"VCPU": 1}}


def test_a_released_claim_that_a_heal_has_put_back_is_released_again(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    owner.unwanted = {claim_id}
    reconciler.round()
    recorded = RecordedHold(
        consumer_uuid=uuid,
        consumer_type="INSTANCE",
        claim_id=claim_id,
        root_provider_uuid=host,
        allocations={host: ProviderAmounts(resources=SMALL)},
        project_id="project",
        user_id="user",
        owner="conductor",
    )
    seen = {uuid: SeenConsumer(generation=store.consumer(uuid).generation)}
    store.dispatcher.call(HealConsumers(request_id=ids.fresh(), seen=seen, holds=(recorded,)))
    assert store.held(uuid) == {host: SMALL}
    store.age("consumers", "claimed_at", 100.0)

    reconciler.round()

    assert store.held(uuid) == {}
    assert found(store) == {claim_id: ("released", "its owner does not want it")}


def test_a_claim_that_cannot_be_released_does_not_block_others(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    stuck, first = old_claim(store, host)
    unwanted, second = old_claim(store, store.provider(**SMALL))
    owner.unwanted = {first, second}
    # As after a manual change of the tables: less is used there than the claim would release.
    with store.database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql(
            "UPDATE inventories SET used = 0 WHERE resource_provider_id ="
            f" (SELECT id FROM resource_providers WHERE uuid = '{host}')"
        )

    reconciler.round()

    assert (store.held(stuck), store.held(unwanted)) == ({host: SMALL}, {})
    outcome, reason = found(store)[first]
    assert outcome == "kept"
    assert reason.startswith("its owner does not want it, but it cannot be released: ")


def test_two_reconcilers_ask_and_release_only_once(
    store: Store, host: str, owner: FakeOwner, conf: cfg.ConfigOpts, bus: Bus, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    kept, wanted = old_claim(store, host)
    owner.unwanted, owner.wanted = {claim_id}, {wanted}
    other = Reconciler(conf, bus, store.dispatcher)

    def round_of_other(_message: OwnsClaim) -> None:
        owner.before_answer = lambda _message: None
        other.round()

    # The whole round of the other reconciler runs during the first question of this one.
    owner.before_answer = round_of_other

    reconciler.round()

    assert store.consumer(uuid).generation == 2
    assert (store.held(uuid), store.held(kept)) == ({}, {host: SMALL})
    assert {claim: outcome for claim, (outcome, _) in found(store).items()} == {claim_id: "released", wanted: "kept"}
    asked = len(owner.asked)
    other.round()
    assert len(owner.asked) == asked


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_release_stays_on_record_if_another_reconciler_gets_its_answer_later_or_none(
    store: Store, host: str, owner: FakeOwner, conf: cfg.ConfigOpts, bus: Bus, reconciler: Reconciler, is_answered: bool
) -> None:
    uuid, claim_id = old_claim(store, host)
    owner.unwanted = {claim_id}
    other = Reconciler(conf, bus, store.dispatcher)

    def round_of_other(_message: OwnsClaim) -> None:
        owner.before_answer = lambda _message: None
        other.round()
        owner.unwanted, owner.wanted = set(), {claim_id} if is_answered else set()

    owner.before_answer = round_of_other

    reconciler.round()
    next_round(store, reconciler)

    assert store.held(uuid) == {}
    assert found(store) == {claim_id: ("released", "its owner does not want it")}


def test_the_entry_of_an_accepted_claim_is_deleted_and_that_of_a_released_one_is_kept(
    store: Store, host: str, owner: FakeOwner, reconciler: Reconciler
) -> None:
    uuid, claim_id = old_claim(store, host)
    _, released = old_claim(store, host)
    owner.unwanted = {released}
    reconciler.round()
    assert found(store).keys() == {claim_id, released}

    store.accept(uuid, claim_id, ids.fresh())
    next_round(store, reconciler)

    assert found(store).keys() == {released}


def test_a_stopping_reconciler_asks_nothing(store: Store, host: str, owner: FakeOwner, reconciler: Reconciler) -> None:
    old_claim(store, host)
    reconciler.end()
    reconciler.round()
    assert owner.asked == []


def test_findings_are_forgotten_in_bounded_transactions(store: Store, owner: FakeOwner, reconciler: Reconciler) -> None:
    outcomes = ("kept", "released")
    same = {"owner": "conductor", "reason": b"", "looked_at": 1.0}
    rows = [
        {"claim_id": ids.fresh(), "consumer_uuid": ids.fresh(), "outcome": outcomes[number % 2], **same}
        for number in range(3 * AT_ONCE)
    ]
    store.database.write(lambda connection: connection.execute(reconciled.insert(), rows))
    deleted: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    with listening(store.database.engine, "after_cursor_execute", note):
        # Of the kept ones none is in doubt any more.
        reconciler.round()
        assert sum(deleted) == len(rows) // 2
        assert {outcome for outcome, _reason in found(store).values()} == {"released"}
        Pruning(store.database, Retention(1000.0, 1000.0, 1000.0)).round()
    assert (sum(deleted), max(deleted)) == (len(rows), AT_ONCE)
    assert not owner.asked
    assert not found(store)


@pytest.mark.backends("mariadb")
def test_findings_about_released_claims_are_read_by_no_round_and_only_the_listed_ones_by_a_list(store: Store) -> None:
    same = {"owner": "conductor", "reason": b"x" * 100}
    rows = [
        {
            "claim_id": ids.fresh(),
            "consumer_uuid": ids.fresh(),
            "outcome": "released" if number else "kept",
            "looked_at": 1.0 + number % 100,
            **same,
        }
        for number in range(20_000)
    ]
    store.database.write(lambda connection: connection.execute(reconciled.insert(), rows))
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE reconciled, consumers")

    listed, read = rows_read(store.database, lambda connection: reconciler_log.actions(connection, ListReconciled()))
    assert len(listed) == 1_000
    assert read < 1_020
    due = partial(reconciler_log.doubtful, older_than=60.0, not_since=10.0, at_most=100)
    found, read = rows_read(store.database, due)
    assert found == []
    assert read < 20
    forgotten, read = rows_read(store.database, reconciler_log.forget_settled, writing=True)
    assert forgotten == 1
    assert read < 20


@pytest.mark.backends("mariadb")
def test_of_a_great_many_claims_that_were_never_examined_a_round_reads_as_many_as_it_examines(store: Store) -> None:
    same: dict[str, Any] = {"project_id": "p", "user_id": "u", "owner": "conductor", "root_provider_id": 1}
    same |= {"generation": 1, "created_at": 1.0, "updated_at": 1.0}
    rows = [
        {"uuid": ids.fresh(), "claim_id": ids.fresh(), "claimed_at": 1.0 + number, **same} for number in range(20_000)
    ]
    store.database.write(lambda connection: connection.execute(consumers.insert(), rows))
    with store.database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE reconciled, consumers")

    oldest = partial(reconciler_log.doubtful, older_than=60.0, not_since=10.0, at_most=100)

    found, read = rows_read(store.database, oldest)

    assert [claim.claim_id for claim in found] == [row["claim_id"] for row in rows[:100]]
    assert read < 500
