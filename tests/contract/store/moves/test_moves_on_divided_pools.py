"""Test moves of an instance with amounts of several providers of one pool: each amount stays where it was claimed."""

from typing import NamedTuple

import pytest
from support.placement_store.builders import Store, request
from support.placement_store.move_builders import Moving, disk, row
from support.placement_store.reshape_builders import Reshaping, dealt

from moorage import ids
from moorage.messages import DeleteResourceProvider
from placement_store.schema import consumers

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")

CPUS = {"VCPU": 2}


class Providers(NamedTuple):
    """The source, two destinations, and the three children of a pool."""

    source: str
    after: str
    third: str
    nvme: str
    ssd: str
    hdd: str


@pytest.fixture
def at(store: Store) -> Providers:
    hosts = [store.provider(name, VCPU=8) for name in ("source", "after", "third")]
    pool = store.provider("pool")
    return Providers(*hosts, *(store.provider(name, parent=pool, DISK_GB=200) for name in ("nvme", "ssd", "hdd")))


@pytest.fixture
def moving(store: Store, at: Providers) -> Moving:
    return Moving(store, {at.source: CPUS, **disk(at.ssd, 50), **disk(at.hdd, 100)}).build()


def others_put(moving: Moving, amounts: dict[str, dict[str, int]]) -> None:
    """Let another client write these amounts in addition to, or in place of, those of the instance."""
    moving.generation = moving.store.put(moving.uuid, {**moving.held, **amounts}, moving.generation)


def set_record(store: Store, migration: str, record: bytes | None) -> None:
    """Set the record of a move as the former release leaves it, which neither reads nor writes this column."""
    update = consumers.update().where(consumers.c.uuid == migration).values(source_amounts=record)
    store.database.write(lambda connection: connection.execute(update))


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_to_one_more_provider_of_the_pool_ends_with_the_amounts_of_one_side(
    store: Store, at: Providers, moving: Moving, outcome: str
) -> None:
    new = {at.after: CPUS, **disk(at.nvme, 100), **disk(at.ssd, 50)}
    moving.begin(new)
    moving.accept()
    assert (moving.amounts, moving.migrations) == (new, {at.source: CPUS, **disk(at.hdd, 100)})

    store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    assert moving.amounts == (new if outcome == "confirm" else moving.held)
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_amounts_elsewhere_in_the_pool_stay_with_the_instance(
    store: Store, at: Providers, moving: Moving, outcome: str
) -> None:
    foreign = disk(at.nvme, 20)
    others_put(moving, foreign)
    moving.begin({at.after: CPUS, **disk(at.ssd, 50)})
    moving.accept()

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    assert moving.amounts == {**(moving.claimed if outcome == "confirm" else moving.held), **foreign}
    assert ended.extras == {}
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_amounts_beside_those_of_the_source_are_named_and_kept(
    store: Store, at: Providers, moving: Moving, outcome: str
) -> None:
    others_put(moving, disk(at.hdd, 120))
    moving.begin({at.after: CPUS, **disk(at.ssd, 50)}, drop_extras=True)
    moving.accept()
    assert moving.migrations == {at.source: CPUS, **disk(at.hdd, 120)}

    if outcome == "confirm":
        ended = moving.confirm(keep_extras=True)
        assert {uuid: dict(part.resources) for uuid, part in ended.extras.items()} == disk(at.hdd, 20)
        assert moving.amounts == {**moving.claimed, **disk(at.hdd, 20)}
    else:
        moving.revert(guest_gone=True)
        assert moving.amounts == {**moving.held, **disk(at.hdd, 120)}
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_the_next_destination_leaves_each_amount_of_the_source_where_it_was_claimed(
    store: Store, at: Providers, moving: Moving, outcome: str
) -> None:
    moving.begin({at.after: CPUS, **disk(at.nvme, 100), **disk(at.ssd, 50)})

    moving.swap({at.third: CPUS, **disk(at.ssd, 10)})

    assert moving.amounts == {at.third: CPUS, **disk(at.ssd, 50)}
    assert moving.migrations == {at.source: CPUS, **disk(at.hdd, 100)}
    moving.accept()
    store.dispatcher.call(moving.ending(outcome, guest_gone=True))
    assert moving.amounts == (moving.claimed if outcome == "confirm" else moving.held)
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_amounts_elsewhere_in_the_pool_stay_if_a_reshape_has_moved_those_of_the_source(
    store: Store, reshaping: Reshaping, at: Providers, moving: Moving, outcome: str
) -> None:
    foreign = disk(at.nvme, 20)
    others_put(moving, foreign)
    moving.begin({at.after: CPUS, **disk(at.ssd, 50)})
    moving.accept()
    store.set_inventories(at.hdd, store.generation(at.hdd), DISK_GB=100)
    tray = store.provider("tray", parent=at.hdd)
    reshaping.move((at.hdd, {"DISK_GB": 100}, tray), dealt=(dealt(moving.migration, at.hdd, tray, DISK_GB=100),))

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    back = {at.source: CPUS, **disk(at.ssd, 50), **disk(tray, 100)}
    assert moving.amounts == {**(moving.claimed if outcome == "confirm" else back), **foreign}
    assert ended.extras == {}
    assert store.is_sound()


@pytest.mark.parametrize("keep_extras", [False, True])
@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_the_amounts_of_the_source_are_found_where_a_reshape_has_moved_them_to_a_provider_of_the_destination(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str, keep_extras: bool
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.nvme, 30)}).build()
    moving.begin({at.after: CPUS, **disk(at.hdd, 10)})
    moving.accept()
    reshaping.move((at.nvme, {"DISK_GB": 200}, at.hdd), dealt=(dealt(moving.migration, at.nvme, at.hdd, DISK_GB=30),))
    assert moving.migrations == {at.source: CPUS, **disk(at.hdd, 30)}

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True, keep_extras=keep_extras))

    back = {at.source: CPUS, **disk(at.hdd, 30)}
    assert (moving.amounts, ended.extras) == (moving.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_source_that_was_reshaped_before_the_move_keeps_its_place_beside_foreign_amounts(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.hdd, 30)}).build()
    tray = store.provider("tray", parent=at.hdd)
    reshaping.move((at.hdd, {"DISK_GB": 200}, tray), dealt=(dealt(moving.uuid, at.hdd, tray, DISK_GB=30),))
    moving.generation = store.consumer(moving.uuid).generation
    moving.begin({at.after: CPUS, **disk(tray, 30)})
    moving.accept()
    foreign = disk(at.nvme, 30)
    moving.generation = store.put(moving.uuid, {**moving.amounts, **foreign}, moving.generation)

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    host = at.after if outcome == "confirm" else at.source
    assert (moving.amounts, ended.extras) == ({host: CPUS, **disk(tray, 30), **foreign}, {})
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_what_a_reshape_has_moved_from_the_destination_is_not_taken_from_the_amounts_of_the_source(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.hdd, 40)}).build()
    moving.begin({at.after: CPUS, **disk(at.ssd, 10), **disk(at.hdd, 10)})
    moving.accept()
    tray = store.provider("tray", parent=at.ssd)
    reshaping.move((at.ssd, {"DISK_GB": 200}, tray), dealt=(dealt(moving.uuid, at.ssd, tray, DISK_GB=10),))

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    new = {at.after: CPUS, **disk(tray, 10), **disk(at.hdd, 10)}
    assert (moving.amounts, ended.extras) == (new if outcome == "confirm" else moving.held, {})
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_amounts_on_the_migration_are_named_if_the_instance_has_all_of_the_source(
    store: Store, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.nvme, 40)}).build()
    moving.begin({at.after: CPUS, **disk(at.nvme, 20)})
    moving.accept()
    foreign = disk(at.hdd, 10)
    store.put(moving.migration, {**moving.migrations, **foreign}, store.consumer(moving.migration).generation)

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    if outcome == "confirm":
        assert moving.amounts == moving.claimed
        assert {uuid: dict(part.resources) for uuid, part in ended.extras.items()} == foreign
    else:
        assert moving.amounts == {**moving.held, **foreign}
    assert store.is_sound()


@pytest.mark.parametrize("keep_extras", [False, True])
@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_foreign_amounts_that_the_migration_has_where_no_claim_was_are_not_those_of_the_source(
    store: Store, at: Providers, outcome: str, keep_extras: bool
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.nvme, 10)}).build()
    foreign = disk(at.hdd, 10)
    others_put(moving, foreign)
    moving.begin({at.after: CPUS, **disk(at.hdd, 10)})
    moving.swap({at.third: CPUS, **disk(at.nvme, 10)})
    assert moving.migrations == {at.source: CPUS, **foreign}
    moving.accept()

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True, keep_extras=keep_extras))

    if outcome == "confirm":
        assert moving.amounts == {**moving.claimed, **(foreign if keep_extras else {})}
        assert {uuid: dict(part.resources) for uuid, part in ended.extras.items()} == foreign
    else:
        assert (moving.amounts, ended.extras) == ({**moving.held, **foreign}, {})
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_begun_by_the_former_release_ends_with_what_a_reshape_had_moved_before(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.hdd, 30)}).build()
    tray = store.provider("tray", parent=at.hdd)
    reshaping.move((at.hdd, {"DISK_GB": 200}, tray))
    moving.generation = store.consumer(moving.uuid).generation
    moving.begin({at.after: CPUS, **disk(tray, 20)})
    moving.accept()
    set_record(store, moving.migration, None)

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    back = {at.source: CPUS, **disk(tray, 30)}
    assert (moving.amounts, ended.extras) == (moving.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
@pytest.mark.parametrize("outcome", ["confirm", "revert", "delete"])
def test_a_move_that_the_former_release_has_continued_ends_with_what_a_reshape_had_moved_before(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.ssd, 10)}).build()
    moving.begin({at.after: CPUS, **disk(at.ssd, 4)})
    record = row(store, moving.migration).source_amounts
    tray = store.provider("tray", parent=at.ssd)
    reshaping.move((at.ssd, {"DISK_GB": 200}, tray))
    set_record(store, moving.migration, None)
    moving.swap({at.third: CPUS, **disk(tray, 4)})
    set_record(store, moving.migration, record)
    moving.accept()

    if outcome == "delete":
        sides = {moving.source_claim: request(moving.held), moving.claim_id: request(moving.claimed)}
        assert store.delete(moving.uuid, for_good=True, claimed_with=sides).extras == {}
    else:
        ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))
        back = {at.source: CPUS, **disk(tray, 10)}
        assert (moving.amounts, ended.extras) == (moving.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_reshape_of_what_the_destination_has_for_itself_leaves_no_more_than_one_side_and_foreign_amounts(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.ssd, 40)}).build()
    moving.begin({at.after: CPUS, **disk(at.hdd, 10), **disk(at.ssd, 10)})
    moving.accept()
    store.put(moving.uuid, {**moving.amounts, **disk(at.ssd, 50)}, moving.generation)
    tray = store.provider("tray", parent=at.hdd)
    reshaping.move((at.hdd, {"DISK_GB": 200}, tray))

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    of_pool = sum(resources.get("DISK_GB", 0) for resources in moving.amounts.values())
    assert (of_pool, ended.extras) == (20 + 10 if outcome == "confirm" else 40 + 10, {})
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_what_both_consumers_have_of_the_source_is_restored_if_a_reshape_brings_it_to_one_provider(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str
) -> None:
    moving = Moving(store, {at.source: CPUS, **disk(at.ssd, 10), **disk(at.hdd, 10)}).build()
    moving.begin({at.after: CPUS, **disk(at.ssd, 10)})
    moving.accept()
    reshaping.move((at.hdd, {"DISK_GB": 200}, at.ssd))
    assert moving.migrations == {at.source: CPUS, **disk(at.ssd, 10)}

    ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    back = {at.source: CPUS, **disk(at.ssd, 20)}
    assert (moving.amounts, ended.extras) == (moving.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


@pytest.mark.parametrize("to", ["a third provider", "the provider of the destination"])
@pytest.mark.parametrize("outcome", ["confirm", "revert", "delete"])
def test_a_reshape_of_what_only_the_source_has_of_a_class_does_not_make_it_foreign(
    store: Store, reshaping: Reshaping, at: Providers, outcome: str, to: str
) -> None:
    left, right = (
        store.provider(name, parent=at.hdd, DISK_GB=100, CUSTOM_IOPS=100) for name in ("left drive", "right drive")
    )
    moving = Moving(store, {at.source: CPUS, left: {"CUSTOM_IOPS": 30}}).build()
    moving.begin({at.after: CPUS, **disk(left, 10), right: {"CUSTOM_IOPS": 30}})
    moving.accept()
    target = right if to == "the provider of the destination" else at.hdd
    reshaping.move((left, {"CUSTOM_IOPS": 100}, target))

    if outcome == "delete":
        sides = {moving.source_claim: request(moving.held), moving.claim_id: request(moving.claimed)}
        assert store.delete(moving.uuid, for_good=True, claimed_with=sides).extras == {}
    else:
        ended = store.dispatcher.call(moving.ending(outcome, guest_gone=True))
        back = {at.source: CPUS, target: {"CUSTOM_IOPS": 30}}
        assert (moving.amounts, ended.extras) == (moving.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


# --- A pool that a reshape had emptied, and that was deleted ----------------------------------------------------------


def delete_emptied(store: Store, reshaping: Reshaping, at: Providers) -> None:
    """Move all that the second child has to the first, and delete the second, as an operator does after a reshape."""
    reshaping.move((at.ssd, {"DISK_GB": 200}, at.nvme))
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=at.ssd))


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("is_left", [True, False])
def test_a_move_takes_along_what_the_claim_had_of_a_pool_that_was_deleted_before(
    store: Store, reshaping: Reshaping, at: Providers, moving: Moving, outcome: str, is_left: bool
) -> None:
    delete_emptied(store, reshaping, at)
    moving.generation = store.consumer(moving.uuid).generation
    new = {at.after: CPUS, **({} if is_left else disk(at.nvme, 30)), **disk(at.hdd, 100)}

    moving.begin(new)

    shared = {**disk(at.nvme, 50), **disk(at.hdd, 100)}
    if is_left:
        assert (moving.amounts, moving.migrations) == (new, {at.source: CPUS, **disk(at.nvme, 50)})
    else:
        assert (moving.amounts, moving.migrations) == ({at.after: CPUS, **shared}, {at.source: CPUS})
    moving.accept()
    ended = moving.confirm() if outcome == "confirm" else moving.revert(guest_gone=True)
    assert moving.amounts == (new if outcome == "confirm" else {at.source: CPUS, **shared})
    assert ended.extras == {}
    assert store.is_sound()


def test_a_revert_keeps_what_the_claim_had_of_a_pool_that_was_deleted_during_the_move(
    store: Store, reshaping: Reshaping, at: Providers, moving: Moving
) -> None:
    moving.begin({at.after: CPUS, **disk(at.ssd, 50), **disk(at.hdd, 100)})
    moving.accept()
    delete_emptied(store, reshaping, at)

    ended = moving.revert(guest_gone=True)

    assert moving.amounts == {at.source: CPUS, **disk(at.nvme, 50), **disk(at.hdd, 100)}
    assert ended.extras == {}


def test_a_swap_releases_what_a_claim_had_of_a_pool_that_was_deleted(
    store: Store, reshaping: Reshaping, at: Providers
) -> None:
    uuid, claimed = ids.fresh(), {at.source: CPUS, **disk(at.ssd, 50)}
    claim_id = store.claim(uuid, claimed).claim_id
    delete_emptied(store, reshaping, at)

    swapped = store.swap(uuid, claim_id, claimed, {at.after: CPUS, **disk(at.nvme, 50)})

    assert store.held(uuid) == {at.after: CPUS, **disk(at.nvme, 50)}
    assert swapped.extras == {}
    assert store.is_sound()
