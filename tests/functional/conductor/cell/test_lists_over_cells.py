"""Test lists of operations and unknown guests over several cells, also of the previous release, in parts."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import Table
from support.conductor.builders import CELL_1, World

from conductor.schema import cell_guests, cell_operations, conductor_operations
from moorage import ids
from moorage.bus.bus import serves
from moorage.cli import lists
from moorage.messages import ListOperations, ListOperationsInCell, ListStrangers, ListStrangersInCell
from moorage.messages.wire import Message
from moorage.model import Cell, Guest, Uuid
from moorage.model.inspection import OperationSummary, UnknownGuest

OTHER, FORMER, AWAY = (Cell(uuid=ids.derived("lists", name), name=name) for name in ("other", "former", "away"))
#: The attempt of a guest that is in the records of several cells.
SHARED = ids.derived("lists", "shared attempt")


def operations(cell: Cell, count: int) -> list[OperationSummary]:
    return [
        OperationSummary(
            uuid=ids.derived(cell.uuid, "operation", number),
            kind="clean",
            subject=ids.derived("lists", "subject", number),
            request_id="r",
            step="destroy",
            step_number=1,
            state="done",
            tries=0,
            cell_uuid=cell.uuid,
            age=float(number),
            idle=1.0,
        )
        for number in range(count)
    ]


def guest(host: str, attempt_id: str) -> Guest:
    return Guest(instance_uuid=ids.derived("lists", "i"), host=host, attempt_id=attempt_id, claim_id=attempt_id)


def unknown_guests(cell: Cell, count: int) -> list[UnknownGuest]:
    guests = [guest(f"host{number % 2}", ids.derived(cell.uuid, "attempt", number)) for number in range(count)]
    return [
        UnknownGuest(guest=one, cell_uuid=cell.uuid, agent="agent", age=1.0) for one in [*guests, guest("host", SHARED)]
    ]


class OtherCell:
    """A cell that keeps its lists in memory."""

    def __init__(self, cell: Cell) -> None:
        self.operations, self.unknown_guests = operations(cell, 7), unknown_guests(cell, 6)

    @serves(ListOperationsInCell)
    def list_operations(self, message: ListOperationsInCell) -> list[OperationSummary]:
        return lists.part_of(self.operations, lists.operation_key, message.limit, message.after)

    @serves(ListStrangersInCell)
    def list_strangers(self, message: ListStrangersInCell) -> list[UnknownGuest]:
        return lists.part_of(self.unknown_guests, lists.unknown_guest_key, message.limit, message.after)


class FormerListOperationsInCell(Message[list[OperationSummary]], frozen=True, kw_only=True):
    topic = "conductor.cell"
    method = "list_operations"
    version = "1.1"
    ended: bool = False
    instance_uuid: Uuid | None = None
    uuid: Uuid | None = None


class FormerListStrangersInCell(Message[list[UnknownGuest]], frozen=True, kw_only=True):
    topic = "conductor.cell"
    method = "list_strangers"
    version = "1.1"


class FormerCell:
    """A cell of the previous release, which answers each list in one message."""

    operations, unknown_guests = operations(FORMER, 5), unknown_guests(FORMER, 4)

    @serves(FormerListOperationsInCell)
    def list_operations(self, _message: FormerListOperationsInCell) -> list[OperationSummary]:
        return self.operations[::-1]

    @serves(FormerListStrangersInCell)
    def list_strangers(self, _message: FormerListStrangersInCell) -> list[UnknownGuest]:
        return self.unknown_guests


def add(world: World, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    world.records.write(lambda connection: connection.execute(table.insert(), rows))


def add_operations(world: World, table: Table, count: int) -> list[str]:
    """Record ended operations, and return their uuids."""
    uuids = [ids.derived("lists", table.name, number) for number in range(count)]
    row = {
        "kind": "build",
        "request_id": "r",
        "subject": "s",
        "step": "wait",
        "step_number": 1,
        "payload": b"{}",
        "tries": 0,
        "state": "done",
        "lease_number": 1,
        "created_at": 1.0,
        "updated_at": 1.0,
        **({"cell_uuid": CELL_1.uuid} if "cell_uuid" in table.c else {}),
    }
    add(world, table, [{**row, "uuid": uuid} for uuid in uuids])
    return uuids


def add_unknown_guests(world: World, count: int) -> list[UnknownGuest]:
    found = unknown_guests(CELL_1, count)
    rows = [
        {
            "cell_uuid": CELL_1.uuid,
            "host": one.guest.host,
            "attempt_id": one.guest.attempt_id,
            "agent": "agent",
            "guest": msgspec.json.encode(one.guest),
            "seen_at": 1.0,
        }
        for one in found
    ]
    add(world, cell_guests, rows)
    return found


def set_call_timeout(world: World, seconds: float) -> None:
    """Let the super conductor wait longer for its cells: one that is slow on a busy machine is not away."""
    world.conf.set_override("call_timeout", seconds, group="rpc")
    world.restart("super")


@pytest.fixture
def cells(world: World) -> World:
    """Return the world with two more cells: one of this release, and one of the previous release."""
    set_call_timeout(world, 6.0)
    for cell, service in ((OTHER, OtherCell(OTHER)), (FORMER, FormerCell())):
        world.placement.cells.append(cell)
        world.serve(f"conductor.{cell.uuid}", service)
    return world


@pytest.mark.parametrize("away", [False, True], ids=["all answer", "one is away"])
def test_operations_of_all_cells_are_listed_completely_and_once(cells: World, *, away: bool) -> None:
    wanted = [*add_operations(cells, conductor_operations, 3), *add_operations(cells, cell_operations, 6)]
    wanted += [one.uuid for one in [*OtherCell(OTHER).operations, *FormerCell.operations]]
    if away:
        cells.placement.cells.append(AWAY)
    conductor = cells.bus.client("conductor")

    for at_once in (4, 7, len(wanted), 1000):
        found = lists.operations(conductor, ListOperations(ended=True), at_once)
        assert sorted(one.uuid for one in found) == sorted(wanted)
        ages = [one.age for one in found]
        assert ages == sorted(ages, reverse=True)


def test_operations_whose_reasons_are_too_large_for_one_message_are_listed_completely(world: World) -> None:
    set_call_timeout(world, 60.0)
    other = OtherCell(OTHER)
    other.operations = [msgspec.structs.replace(one, reason="x" * 2**21) for one in other.operations]
    world.placement.cells.append(OTHER)
    world.serve(f"conductor.{OTHER.uuid}", other)

    found = lists.operations(world.bus.client("conductor"), ListOperations(ended=True), 7)

    assert sorted(one.uuid for one in found) == sorted(one.uuid for one in other.operations)


@pytest.mark.parametrize("away", [False, True], ids=["all answer", "one is away"])
def test_unknown_guests_of_all_cells_are_listed_completely_and_once(cells: World, *, away: bool) -> None:
    found = [*add_unknown_guests(cells, 5), *OtherCell(OTHER).unknown_guests, *FormerCell.unknown_guests]
    wanted = sorted(map(lists.unknown_guest_key, found))
    assert len({one.guest.attempt_id for one in found}) == len(found) - 2, "three cells have the same attempt"
    if away:
        cells.placement.cells.append(AWAY)

    for at_once in (2, 5, len(wanted), 1000):
        listed = lists.unknown_guests(cells.bus.client("conductor"), ListStrangers(), at_once)
        assert [lists.unknown_guest_key(one) for one in listed] == wanted
    of_one_cell = lists.unknown_guests(cells.bus.client(f"conductor.{CELL_1.uuid}"), ListStrangersInCell(), 2)
    assert [one.guest for one in of_one_cell] == [one.guest for one in listed if one.cell_uuid == CELL_1.uuid]


def test_many_operations_and_unknown_guests_are_listed_in_parts(world: World) -> None:
    set_call_timeout(world, 60.0)
    many = 11_000
    wanted = {*add_operations(world, conductor_operations, 100), *add_operations(world, cell_operations, many)}
    add_unknown_guests(world, many)
    conductor = world.bus.client("conductor")

    assert len(conductor.call(ListOperations(ended=True))) == 5_100, "one message has only the newest operations"
    found = lists.operations(conductor, ListOperations(ended=True))
    assert len(found) == len(wanted)
    assert {one.uuid for one in found} == wanted
    assert len(lists.unknown_guests(conductor, ListStrangers())) == many + 1
