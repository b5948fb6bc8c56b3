"""Test moves of an instance with amounts of several providers of one pool: each amount stays where it was claimed."""

from typing import NamedTuple

import pytest
from support.placement_store.builders import Store
from support.placement_store.move_builders import Moving, disk
from support.placement_store.reshape_builders import Reshaping, dealt

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
