"""Ports: bandwidth that is attached to the servers of a room, on the two NICs of each host."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from moorage import context, errors, ids
from moorage.messages import (
    AttachResource,
    DeleteInstance,
    DetachResource,
    GetAllocations,
    OperationBegun,
    PutAllocations,
    ShowOperation,
)
from moorage.model import ResourceGroup
from moorage.model.inspection import OperationSummary
from support.operations.room import Room
from support.placement_store.builders import Store

BANDWIDTH = "NET_BW_EGR_KILOBIT_PER_SEC"
#: Options of the fake driver: each NIC has room for one port and a small one.
NICS: dict[str, Any] = {"nics": 2, "vfs_per_nic": 4, "nic_bandwidth": 1000}
PORT, WIDTH = "_port1", 600


def bandwidth(amount: int = WIDTH, **different: Any) -> ResourceGroup:
    return ResourceGroup(resources={BANDWIDTH: amount}, **different)


@dataclass(frozen=True)
class Ports:
    """The ports of a room."""

    room: Room

    def order(self, uuid: str, name: str = PORT, amount: int = WIDTH, **different: Any) -> OperationBegun:
        """Order the attachment of a port."""
        message = AttachResource(
            request_id=ids.fresh(), instance_uuid=uuid, suffix=name, group=bandwidth(amount, **different)
        )
        return self.room.order(message)

    def attach(self, uuid: str, name: str = PORT, amount: int = WIDTH, **different: Any) -> OperationSummary:
        """Attach a port, and return the ended operation."""
        return self.ended(self.order(uuid, name, amount, **different))

    def detach(self, uuid: str, name: str = PORT) -> OperationSummary:
        """Detach a port, and return the ended operation."""
        return self.ended(self.room.order(DetachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix=name)))

    def ended(self, begun: OperationBegun) -> OperationSummary:
        shown = ShowOperation(uuid=begun.operation_uuid)
        self.room.until(lambda: self.room.ask(shown).state != "pending", "the operation to end")
        return self.room.ask(shown)

    def nics(self) -> dict[str, str]:
        """Return the NICs by uuid: the role of the host, and the number of the NIC."""
        return {uuid: f"{role} {number}" for uuid, (role, number) in self.room.nics.items()}

    def nic(self, role: str, number: int) -> str:
        return next(uuid for uuid, name in self.nics().items() if name == f"{role} {number}")

    def held(self, consumer: str) -> Mapping[str, int]:
        """Return the amounts that a consumer holds of each NIC."""
        try:
            allocations = self.room.placement.call(GetAllocations(consumer_uuid=consumer)).allocations
        except errors.ConsumerNotFound:
            return {}
        names = self.nics()
        return {names[uuid]: part.resources[BANDWIDTH] for uuid, part in allocations.items() if uuid in names}

    def take_away(self, uuid: str) -> None:
        """Remove all ports of a server with a plain write, as an operator could."""

        def change(held: dict[str, dict[str, int]]) -> None:
            for nic in self.room.nics:
                held.pop(nic, None)

        rewrite(self.room, uuid, change)

    def take(self, role: str, number: int, amount: int) -> None:
        """Let another consumer hold bandwidth of a NIC."""
        self.room.fillers.append(ids.fresh())
        self.room.hold(self.room.fillers[-1], {self.nic(role, number): {BANDWIDTH: amount}})


def delete(room: Room, uuid: str) -> None:
    room.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid))
    room.becomes(uuid, "deleted")
    with pytest.raises(errors.ConsumerNotFound):
        room.placement.call(GetAllocations(consumer_uuid=uuid))


def give(room: Room, kind: Any, uuid: str, **fields: Any) -> Any:
    return room.order(kind(request_id=ids.fresh(), instance_uuid=uuid, **fields))


def rewrite(room: Room, uuid: str, change: Callable[[dict[str, dict[str, int]]], None]) -> None:
    """Rewrite the allocations of a consumer, as an operator could."""
    known = room.placement.call(GetAllocations(consumer_uuid=uuid))
    held = {at: dict(one.resources) for at, one in known.allocations.items()}
    change(held)
    owner = {name: getattr(known, name) for name in ("project_id", "user_id", "consumer_type")}
    wanted = Store.wanted({at: amounts for at, amounts in held.items() if amounts}, known.generation, **owner)
    room.placement.call(PutAllocations(request_id=ids.fresh(), consumer_uuid=uuid, wanted=wanted))


def at_failpoint(room: Room, point: str, action: Callable[[], None]) -> str:
    """Call ``action`` when the next order passes a failpoint; return the request id of that order."""
    request_id = ids.fresh()
    room.troubles.arm(request_id, point, action)
    return request_id


def attach_under(room: Room, request_id: str, uuid: str) -> Any:
    message = AttachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix=PORT, group=bandwidth())
    with context.bound(request_id=request_id):
        return room.order(message)
