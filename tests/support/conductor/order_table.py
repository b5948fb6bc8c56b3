"""Every order about a server, the states in which a test can put a server, and the orders refused in each state."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    ConfirmMigration,
    DeleteInstance,
    DetachResource,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image, ResourceGroup
from support.operations.room import LARGE, Room

PORT = "_port"
RESOURCES = ("attach", "detach")
#: Every order, as a function of a server and of the host that it may name.
ORDERS: Mapping[str, Callable[[str, str | None], Mutation[Any]]] = {
    "delete": lambda uuid, _host: DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid),
    "migrate": lambda uuid, host: MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "resize": lambda uuid, host: ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host, flavor=LARGE),
    "confirm": lambda uuid, _host: ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "revert": lambda uuid, _host: RevertMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "live-migrate": lambda uuid, host: LiveMigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "abort": lambda uuid, _host: AbortMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "evacuate": lambda uuid, host: EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "shelve": lambda uuid, _host: ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid),
    "unshelve": lambda uuid, host: UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "rebuild": lambda uuid, _host: RebuildInstance(request_id=ids.fresh(), instance_uuid=uuid, image=Image(id="other")),
    "attach": lambda uuid, _host: AttachResource(
        request_id=ids.fresh(), instance_uuid=uuid, suffix=PORT, group=ResourceGroup(resources={"VCPU": 1})
    ),
    "detach": lambda uuid, _host: DetachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix=PORT),
}
MOVES = ("migrate", "resize", "live-migrate")
#: The orders that are refused in each state. A delete is never refused.
REFUSED = {
    "building": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "unshelve", "rebuild", *RESOURCES),
    "active": ("confirm", "revert", "abort", "evacuate", "unshelve"),
    "moving": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "unshelve", "rebuild", *RESOURCES),
    "moved": (*MOVES, "abort", "evacuate", "shelve", "unshelve", "rebuild", *RESOURCES),
    "confirming": (*MOVES, "revert", "abort", "evacuate", "shelve", "unshelve", "rebuild", *RESOURCES),
    "shelving": (*MOVES, "confirm", "revert", "abort", "evacuate", "unshelve", "rebuild", *RESOURCES),
    "shelved": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "rebuild", "attach"),
    "unshelving": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "unshelve", "rebuild", *RESOURCES),
    "error": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "unshelve", *RESOURCES),
    "deleted": tuple(name for name in ORDERS if name != "delete"),
}
#: Part of the error for an evacuation in each state: what must be done first.
FIRST: Mapping[str, str] = {
    "building": "is given up",
    "active": "forced-down",
    "moving": "abort it if it is a live migration",
    "moved": "Confirm or revert migration",
    "confirming": "Confirm or revert migration",
    "shelving": "is forced down; then unshelve it",
    "shelved": "Unshelve it",
    "unshelving": "Wait",
    "error": "forced-down",
    "deleted": "deleted",
}
#: The same for other orders whose refusals give advice.
FIRST_OTHERWISE: Mapping[str, str] = {
    **FIRST,
    "active": "to be unshelved it must be shelved",
    "error": "Rebuild it, or evacuate it",
}
ADVISED = ("shelve", "unshelve", "rebuild", "attach")


def give(room: Room, order: str, uuid: str, host: str | None = None) -> object:
    """Send an order with a new request id."""
    return room.order(ORDERS[order](uuid, host))


@contextmanager
def server_in(room: Room, state: str) -> Iterator[str]:
    """Yield a server in a state in which it stays; delete it at the end."""
    uuid = room.build(hanging=state == "building")
    try:
        _bring(room, uuid, state)
        # What earlier servers have left is being cleaned up; after that it changes nothing more.
        room.until(lambda: room.pending() <= room.pending(uuid), "the others to be gone")
        yield uuid
    finally:
        room.cloud.faults.forget(uuid)
        give(room, "delete", uuid)
        room.becomes(uuid, "deleted")
        room.clear(uuid)


def _bring(room: Room, uuid: str, state: str) -> None:
    """Bring an active server into another state."""
    if state == "moving":
        room.misbehave("hanging", uuid, "destination")
        give(room, "migrate", uuid, room.hosts["destination"])
        room.until(lambda: room.is_building(uuid, "destination"), "the guest to arrive")
    elif state in ("moved", "confirming"):
        give(room, "migrate", uuid)
        room.becomes(uuid, "moved")
        if state == "confirming":
            room.misbehave("silent", uuid, "source")
            give(room, "confirm", uuid)
    elif state in ("shelving", "shelved"):
        if state == "shelving":
            room.misbehave("silent", uuid, "source")
        give(room, "shelve", uuid)
        room.becomes(uuid, state)
    elif state == "unshelving":
        give(room, "shelve", uuid)
        room.becomes(uuid, "shelved")
        room.misbehave("hanging", uuid, *room.hosts)
        give(room, "unshelve", uuid)
        room.until(lambda: any(one.state == "building" for one in room.show(uuid).attempts), "it to be started")
    elif state == "error":
        room.misbehave("stuck", uuid, "source")
        give(room, "rebuild", uuid)
        room.becomes(uuid, "error")
    elif state == "deleted":
        give(room, "delete", uuid)
        room.becomes(uuid, "deleted")


def refused(room: Room, order: str, uuid: str, host: str | None = None) -> errors.MoorageError | None:
    """Send an order; return the error if it was refused."""
    try:
        give(room, order, uuid, host)
    except errors.MoorageError as fault:
        return fault
    return None
