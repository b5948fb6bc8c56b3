"""Test the judge of a simulation at a commit: guests and their allocations must agree, and moves stop their source."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.databases import migrated
from support.placement_store.builders import Store
from support.placement_store.group_builders import Groups
from support.placement_store.move_builders import Moving

from compute.driver import GuestOrder
from compute.fake.guest_file import GuestFile
from conductor.schema import CELL, cell_migrations
from harness.simulation.clients.answers import Broken
from harness.simulation.clients.seats import HOLDERS, PLACES, SEAT, create_seats
from harness.simulation.cloud import WHOLE
from harness.simulation.judge import Judge, _fit_into_two
from harness.simulation.machine import store as simulated_store
from moorage import ids
from moorage.db.database import Database
from moorage.model import Guest, MoveKind
from placement_store.schema import MAIN, hosts

SMALL = {"VCPU": 1, "MEMORY_MB": 1024}


@dataclass
class FakeCloud:
    """The files of a cloud that is not running."""

    folder: Path
    database: Database
    cell_names: tuple[str, ...] = ("cell1", "cell2")

    def guests_file(self, cell: str) -> Path:
        return self.folder / f"agent-{cell}.guests"


@dataclass
class FakeOperators:
    """Operators that have ordered the deletion of some hosts."""

    deleted: set[str] = field(default_factory=set)


@dataclass
class FakeCallers:
    """Callers that have sent no requests."""

    broken: list[str] = field(default_factory=list)
    groups: dict[str, object] = field(default_factory=dict)
    operators: FakeOperators = field(default_factory=FakeOperators)


class Stage:
    """Hosts, an instance whose claim is accepted, and the guests of the first cell."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        self.guests = [GuestFile(cloud.guests_file(cell)) for cell in cloud.cell_names]
        for file in self.guests:
            file.open()
        self.store = Store(cloud.database)
        groups = Groups(self.store)
        create_seats(self.store.dispatcher.call)
        whole: dict[str, Any] = {**WHOLE}
        self.host, self.other = groups.host(**whole), groups.host(**whole)
        self.uuid, self.attempt = ids.fresh(), ids.fresh()
        self.claim_id = self.store.claim(self.uuid, {self.host: SMALL}).claim_id
        self.callers = FakeCallers()
        self.judge = Judge(cloud, self.callers)  # type: ignore[arg-type]

    def accept(self) -> None:
        self.store.accept(self.uuid, self.claim_id, self.attempt)

    def place(self, host: str) -> None:
        """Put a guest of the attempt on a host."""
        guest = Guest(instance_uuid=self.uuid, host=host, attempt_id=self.attempt, claim_id=self.claim_id)
        self.guests[0].begin(guest, WHOLE)

    def committed(self, *written: str) -> None:
        """Have the judge check, as at a commit that has changed these tables, by default allocations.

        :raises Broken: a promise is broken.
        """
        assert simulated_store.FAULTS.committed is not None
        tables = set(written or ["allocations"])
        simulated_store.FAULTS.committed("conductor", str(self.cloud.database.url.database), tables)
        self.judge.check()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    database = Database(migrated.sqlite(tmp_path / "main.sqlite", MAIN, CELL), "main")
    made = Stage(FakeCloud(tmp_path, database))
    yield made
    simulated_store.FAULTS.reset()
    made.judge._file.close()
    for file in made.guests:
        file.close()
    database.close()


def test_a_guest_with_an_accepted_claim_passes(stage: Stage) -> None:
    stage.committed()
    stage.accept()
    stage.place(stage.host)
    stage.committed()


def test_a_guest_with_a_residue_passes(stage: Stage) -> None:
    stage.accept()
    stage.place(stage.host)
    stage.store.delete(stage.uuid, for_good=True, leave_residue=True)
    stage.committed()


@pytest.mark.parametrize("kind", ["cold-migration", "resize", "live-migration", "evacuation"])
def test_only_a_cold_move_must_stop_the_guest_on_the_source_before_the_destination_starts_it(
    stage: Stage, kind: MoveKind
) -> None:
    moving = Moving(stage.store, {stage.host: SMALL}).build()
    source = put_guest(stage, moving, moving.attempt, stage.host)
    moving.begin({stage.other: SMALL}, kind=kind)
    stage.cloud.database.write(
        lambda connection: connection.execute(cell_migrations.insert().values(record_of_move(moving, kind)))
    )
    stage.committed("cell_attempts")
    stage.store.accept(moving.uuid, moving.claim_id, moving.next_attempt)
    put_guest(stage, moving, moving.next_attempt, stage.other)

    if kind in ("cold-migration", "resize"):
        with pytest.raises(Broken, match=rf"promise 2: .* {moving.uuid} has a guest on {stage.other} and runs on"):
            stage.committed("cell_attempts")
        stage.callers.broken.clear()
        stage.guests[0].begin_order(stage.host, source, "stop")
        stage.guests[0].finish_order(stage.host, source, "stop")
    stage.committed("cell_attempts")


def put_guest(stage: Stage, moving: Moving, attempt: str, host: str) -> GuestOrder:
    """Put a guest of an attempt on a host, and return an order about it."""
    guest = Guest(instance_uuid=moving.uuid, host=host, attempt_id=attempt, claim_id=moving.source_claim)
    stage.guests[0].begin(guest, WHOLE)
    stage.guests[0].finish(guest)
    return GuestOrder(ids.fresh(), moving.uuid, attempt, moving.source_claim)


def record_of_move(moving: Moving, kind: MoveKind) -> dict[str, Any]:
    """Return the record that the cell has of a move in progress."""
    return {
        "cell_uuid": ids.fresh(),
        "uuid": moving.migration,
        "instance_uuid": moving.uuid,
        "request_id": ids.fresh(),
        "kind": kind,
        "state": "moving",
        "instance_state": "active",
        "source_number": 1,
        "source_host": "source",
        "is_aborted": False,
        "created_at": 0.0,
        "updated_at": 0.0,
    }


@pytest.mark.parametrize(
    ("amounts", "fit"),
    [([], True), ([4, 4], True), ([3, 3, 1, 1], True), ([3, 3, 2], False), ([5], False), ([2, 2, 2, 2], True)],
)
def test_amounts_fit_into_two_places_if_none_has_to_be_divided(amounts: list[int], fit: bool) -> None:
    assert _fit_into_two(amounts, 4) is fit


def test_a_guest_may_be_destroyed_before_its_allocations_are_released(stage: Stage) -> None:
    stage.accept()
    stage.place(stage.host)
    stage.guests[0].destroy(stage.host, stage.attempt, stage.claim_id)
    stage.store.delete(stage.uuid, for_good=True)
    stage.committed()


def reserve(stage: Stage, vcpus: int) -> None:
    """Reserve VCPU of the first host for the host itself."""
    inventories = stage.store.get(stage.host).inventories
    changed = {**inventories, "VCPU": structs.replace(inventories["VCPU"], reserved=vcpus)}
    stage.store.set_inventories(stage.host, stage.store.generation(stage.host), **changed)


def test_an_inventory_may_be_made_smaller_than_its_use_but_no_more_of_it_be_allocated(stage: Stage) -> None:
    stage.committed()
    reserve(stage, 8)
    stage.committed()
    reserve(stage, 0)
    stage.committed()
    stage.store.claim(ids.fresh(), {stage.host: {"VCPU": 1}})
    reserve(stage, 8)
    with pytest.raises(Broken, match=r"promise 1: at the commit of conductor, .* has 2 of class 0 allocated, .* of 0"):
        stage.committed()


def test_seats_that_only_one_of_their_holders_gives_up_are_found(stage: Stage) -> None:
    stage.committed()
    stage.store.put(HOLDERS[0], {PLACES[0]: {SEAT: 9}}, 1)
    with pytest.raises(Broken, match=r"at the commit of conductor, promise 7: the holders have 19 seats, of 20"):
        stage.committed()


def test_seats_that_are_nowhere_are_found(stage: Stage) -> None:
    stage.committed()
    stage.store.set_inventories(PLACES[0], stage.store.generation(PLACES[0]), **{SEAT: 99})
    with pytest.raises(Broken, match=r"at the commit of conductor, promise 7: there are 99 seats, of 100"):
        stage.committed()


def set_up(stage: Stage, *, up: bool) -> None:
    """Register the first host as up or down."""
    stage.cloud.database.write(
        lambda connection: connection.execute(hosts.update().where(hosts.c.service_host == stage.host).values(up=up))
    )


def test_a_host_that_is_deleted_may_have_a_guest_until_it_is_up_again(stage: Stage) -> None:
    stage.place(stage.host)
    stage.callers.operators.deleted.add(stage.host)
    set_up(stage, up=False)
    stage.committed()
    set_up(stage, up=True)
    with pytest.raises(Broken, match="promise 3"):
        stage.committed()


def of_a_claim_that_was_not_accepted(stage: Stage) -> None:
    stage.place(stage.host)


def of_an_accepted_claim_elsewhere(stage: Stage) -> None:
    stage.accept()
    stage.place(stage.other)


def of_an_instance_that_was_released(stage: Stage) -> None:
    stage.accept()
    stage.place(stage.host)
    stage.store.delete(stage.uuid, for_good=True)


def of_a_residue_that_was_released(stage: Stage) -> None:
    stage.accept()
    stage.place(stage.host)
    stage.store.delete(stage.uuid, for_good=True, leave_residue=True)
    stage.store.delete(stage.attempt, for_good=True)


@pytest.mark.parametrize(
    "guest",
    [
        of_a_claim_that_was_not_accepted,
        of_an_accepted_claim_elsewhere,
        of_an_instance_that_was_released,
        of_a_residue_that_was_released,
    ],
)
def test_a_guest_without_allocations_is_found_at_the_next_commit(stage: Stage, guest: Callable[[Stage], None]) -> None:
    stage.committed()
    guest(stage)
    with pytest.raises(Broken, match=rf"promise 3: at the commit of conductor, .* attempt {stage.attempt} of"):
        stage.committed()
