"""Plays rows of the table of operations in a room of a cloud."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from moorage import context, errors, ids
from moorage.messages import (
    AbortMigration,
    AttachResource,
    BuildInstances,
    ConfirmMigration,
    DeleteAllocations,
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
from moorage.model import Image
from support.operations.basis import (
    AGAIN,
    ANOTHER,
    ANSWERS,
    AS_ORDERED,
    CONFIRM,
    DELETE,
    DROPPING,
    ELSEWHERE,
    FORCED_DOWN,
    KEEPING,
    REBUILD,
    ROOM,
    TAKEN_AWAY,
    Row,
    ServerState,
)
from support.operations.cloud import CrashPoint, Troubles, crash, lose
from support.operations.deletes import ON_BOTH_SIDES, ON_IT, SILENT, TAKE_AWAY
from support.operations.port_room import PORT, WIDTH, Ports, bandwidth
from support.operations.resources import ALL_FULL, DELETED, FENCED, NO_ROOM, ONE_FULL, TAKEN
from support.operations.room import LARGE, Room, Seen
from support.operations.timeouts import ALL_GIVEN_UP, ONE_GIVEN_UP

OTHERS = ("destination", "alternate")


@dataclass
class Play:
    """One row in one room."""

    row: Row
    room: Room
    troubles: Troubles
    request_id: str = field(default_factory=ids.fresh)
    uuid: str = ""
    crash: CrashPoint | None = None

    def run(self) -> list[str]:
        """Play the row; return the differences from the table."""
        with context.bound(request_id=self.request_id):
            try:
                return self._run()
            finally:
                self.troubles.disarm(self.request_id)
                if self.uuid:
                    self.room.clear(self.uuid)

    def _run(self) -> list[str]:
        self._prepare()
        self._make_trouble()
        self._order()
        if self.crash is not None:
            self.room.until(self.crash.reached.is_set, "the step to be reached")
            self.crash.restart()
        wrong = self._compare("then", self.row.then, self.row.pending)
        unpassed = self.troubles.disarm(self.request_id)
        wrong += [f"{self.row.operation}, {self.row.trouble}: nobody passed {name}" for name in unpassed]
        if self.row.next != AS_ORDERED:
            (self._take_away if self.row.next == TAKE_AWAY else self._go_on)()
            wrong += self._compare(f"after: {self.row.next}", self.row.end)
        self._delete()
        return wrong

    def _delete(self) -> None:
        self.room.cloud.faults.forget(self.uuid)
        self.room.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=self.uuid))
        self.room.becomes(self.uuid, "deleted")
        if self.row.policies == KEEPING:
            self._take_away()
        self.room.until(lambda: not self.room.seen(self.uuid).holds, "nothing to be held")

    def _take_away(self) -> None:
        with suppress(errors.ConsumerNotFound):
            self.room.take_away(self.uuid)

    def _compare(self, when: str, state: ServerState, pending: str = "") -> list[str]:
        wanted = Seen(state.server, state.migration, state.holds, (pending,) if pending else ())
        seen = self.room.settles(self.uuid, wanted)
        if seen == wanted:
            return []
        instance = self.room.show(self.uuid)
        attempts = [(one.host, one.state, one.reason) for one in instance.attempts]
        why = f"{instance.reason} {attempts}"
        return [f"{self.row.operation}, {self.row.trouble}, {when}:\n  {seen}\n  instead of\n  {wanted}\n  {why}"]

    # --- Before -------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        room, operation = self.room, self.row.operation
        if operation == "build":
            self.uuid = ids.fresh()
            # So that the build finds the destination and the alternate, as a move does.
            room.fill("source")
            return
        self.uuid = room.build(hanging=self.row.trouble == "it is being built")
        waiting = ("its move waits to be confirmed", "its move is being confirmed", ON_BOTH_SIDES)
        if operation in ("confirm", "revert") or self.row.trouble in waiting:
            self._give("migrate", host="destination")
            room.becomes(self.uuid, "moved")
        elif operation == "abort" or self.row.trouble == "it is on its way to another host":
            room.misbehave("hanging", self.uuid, "destination")
            self._give("live-migrate" if operation == "abort" else "migrate", host="destination")
            room.until(lambda: room.is_building(self.uuid, "destination"), "the guest to arrive")
        elif operation == "detach":
            self._give("attach")
            room.until(lambda: bool(room.show(self.uuid).attached), "the port to be attached")
        elif operation == "evacuate":
            room.force_down("source")
        elif operation == "unshelve":
            self._give("shelve")
            room.becomes(self.uuid, "shelved")
            # So that the unshelving finds the destination and the alternate, as a move does.
            room.fill("source")
        if self.row.trouble == "its move is being confirmed":
            # The confirmation must not proceed until the next order has ended it, however long that takes.
            self.troubles.arm(self.request_id, "step.confirm.destroy.begin", crash, times=10_000)
            self._give("confirm")

    def _give(self, operation: str, host: str | None = None, drop_extras: bool = False) -> None:
        """Send an order."""
        to = None if host is None else self.room.hosts[host]
        request_id, uuid = ids.fresh(), self.uuid
        plain: dict[str, Any] = {"request_id": request_id, "instance_uuid": uuid}
        moving: dict[str, Any] = {**plain, "host": to, "drop_extras": drop_extras}
        messages: dict[str, Callable[[], Mutation[Any]]] = {
            "build": lambda: BuildInstances(
                request_id=request_id, request_spec=self.room.spec(), instance_uuids=(uuid,)
            ),
            "delete": lambda: DeleteInstance(**plain),
            "migrate": lambda: MigrateInstance(**moving),
            "resize": lambda: ResizeInstance(**moving, flavor=LARGE),
            "resize on its host": lambda: ResizeInstance(**{**moving, "host": self.room.hosts["source"]}, flavor=LARGE),
            "confirm": lambda: ConfirmMigration(**plain),
            "revert": lambda: RevertMigration(**plain),
            "live-migrate": lambda: LiveMigrateInstance(**moving),
            "abort": lambda: AbortMigration(**plain),
            "evacuate": lambda: EvacuateInstance(**moving),
            "shelve": lambda: ShelveInstance(**plain),
            "unshelve": lambda: UnshelveInstance(**plain, host=to),
            "rebuild": lambda: RebuildInstance(**plain, image=Image(id="another")),
            "attach": lambda: AttachResource(**plain, suffix=PORT, group=bandwidth()),
            "detach": lambda: DetachResource(**plain, suffix=PORT),
        }
        self.room.order(messages[operation]())

    def _order(self) -> None:
        self._give(self.row.operation, "destination" if "requested" in self.row.trouble else None)
        if roles := GIVEN_UP.get(self.row.trouble):
            # Hosts without room for the server are not tried.
            tried = [role for role in roles if role != "source" or self.row.operation == "resize"]
            self.room.until(lambda: self.room.given_up(self.uuid, *tried), "the hosts to be given up")
        elif self.row.trouble == FORCED_DOWN:
            self.room.force_down("source")
        elif self.row.trouble.endswith("others write to the residue"):
            self.room.until(lambda: "residue" in self.room.seen(self.uuid).holds, "a residue to be left")
            self.room.attach_licence(self.room.migration_of(self.uuid))

    # --- Trouble ------------------------------------------------------------------------------------------------------

    def _make_trouble(self) -> None:
        trouble, room, uuid = self.row.trouble, self.room, self.uuid
        hosts = {
            "the destination fails": ("failing", "destination"),
            "the destination refuses": ("refusing", "destination"),
            "every destination fails": ("failing", "source", *OTHERS),
            "its host fails": ("failing", "source"),
            "the source's guest cannot be stopped": ("stuck", "source"),
            "the source's guest cannot be started": ("stuck", "source"),
            "the guest cannot be rebuilt": ("stuck", "source"),
            "the source's host does not answer": ("silent", "source"),
            "the destination's host does not answer": ("silent", "destination"),
        }
        for start, (how, *which) in hosts.items():
            if trouble.startswith(start):
                room.misbehave(how, uuid, *which)
        for how in ("hanging", "silent"):
            room.misbehave(how, uuid, *GIVEN_UP.get(trouble, ()))
        if self.row.point is not None:
            self._interrupt(*self.row.point)
        self._make_others_write(trouble)
        if trouble == "no host has room":
            room.fill("destination")
            room.fill("alternate")
            if self.row.operation == "resize":
                room.fill("source", leave=LARGE.vcpus - 1)
        elif trouble == NO_ROOM:
            self._fill_nics()
        elif trouble == "its host has no room for both sizes":
            room.fill("source", leave=LARGE.vcpus - 1)

    def _make_others_write(self, trouble: str) -> None:
        room, uuid = self.room, self.uuid
        licence: Callable[[], None] = lambda: room.attach_licence(uuid)  # noqa: E731
        to_migration: Callable[[], None] = lambda: room.attach_licence(room.migration_of(uuid))  # noqa: E731
        take_away: Callable[[], None] = lambda: room.take_away(room.migration_of(uuid))  # noqa: E731
        take_own: Callable[[], None] = lambda: room.take_away(uuid)  # noqa: E731
        at: dict[str, tuple[str, Callable[[], None], int]] = {
            "others write before the claim": ("step.*.select.begin", licence, 1),
            "others write before the claim, again and again": ("step.*.select.begin", self._again_and_again, 4),
            "others write to the source's allocations before the claim": (
                "step.move.select.begin",
                lambda: room.attach_memory(uuid),
                1,
            ),
            "the destination fails, and others write before the swap": ("step.*.swap.begin", licence, 1),
            "every destination fails, and others write before the source is given back": (_END, licence, 1),
            "others write before the source is given back": (_END, licence, 1),
            "others write before the source is released": (_END, licence, 1),
            "others write before the end of the move": (_END, licence, 1),
            "others write before the release": ("step.*.release.begin", licence, 1),
            "others write during it": ("step.rebuild.rebuild.begin", licence, 1),
            "the requested destination fills up before the claim": (
                "step.*.select.begin",
                lambda: room.fill("destination"),
                1,
            ),
            "the destination fails, and the alternates are full by then": ("step.*.swap.begin", self._fill_all, 1),
        }
        writing, taking = "others write to the migration before ", "others delete the migration's allocations before "
        taking_own = "others delete the server's allocations before "
        for start, act in ((writing, to_migration), (taking, take_away), (taking_own, take_own)):
            for end in ("the source is given back", "the source is released", "the end of the move"):
                at |= {f"{start}{end}": (_END, act, 1)}
        for start, act in ((writing, to_migration), (taking, take_away), (taking_own, take_own)):
            at[f"every destination fails, and {start}the source is given back"] = (_END, act, 1)
        at["the destination fails, and " + writing + "the swap"] = ("step.*.swap.begin", to_migration, 1)
        at |= {
            "others write before the write": (_WRITE, licence, 1),
            "others write before the write, again and again": (_WRITE, self._again_and_again, 4),
            ONE_FULL: (_WRITE, self._fill_nic, 1),
            ALL_FULL: (_WRITE, self._fill_nics, 1),
            DELETED: (_WRITE, lambda: self._give("delete"), 1),
        }
        if trouble.startswith(FENCED):
            self.troubles.arm(self.request_id, _WRITE, self._fill_nic)
            self.troubles.arm(self.request_id, "step.attach.write.send.*", lose)
        elif trouble == TAKEN:
            Ports(room).take_away(uuid)
        elif trouble in at:
            self.troubles.arm(self.request_id, *at[trouble])
        elif trouble in (ON_IT, ON_BOTH_SIDES):
            licence()
        if trouble in (ON_BOTH_SIDES, SILENT):
            room.attach_memory(room.migration_of(uuid) if trouble == ON_BOTH_SIDES else uuid)

    def _again_and_again(self) -> None:
        """Write so that the allocations are equal in the end: first add the licence, then rewrite the same."""
        self.room.touch_licence(self.uuid)

    def _fill_nic(self) -> None:
        Ports(self.room).take("source", 0, WIDTH)

    def _fill_nics(self) -> None:
        for number in (0, 1):
            Ports(self.room).take("source", number, WIDTH)

    def _fill_all(self) -> None:
        self.room.fill("alternate")
        if self.row.operation == "resize":
            self.room.fill("source")

    def _interrupt(self, half: str, kind: str, step: str) -> None:
        if "the reply is lost" in self.row.trouble:
            self.troubles.arm(self.request_id, f"step.{kind}.{step}.answered.*", lose)
            return
        service = "conductor" if half == "super" else "conductor-cell1"
        self.crash = CrashPoint(self.room.cloud, service)
        self.troubles.arm(self.request_id, f"step.{kind}.{step}.done", self.crash, times=10_000)

    # --- After --------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        room, row = self.room, self.row
        room.cloud.faults.forget(self.uuid)
        if row.next == ANSWERS:
            return
        if row.trouble in GIVEN_UP:
            # As long as residues are held on these hosts, the scheduler prefers others.
            room.until(lambda: "residue" not in room.seen(self.uuid).holds, "the hosts to have answered")
        if row.next in (ROOM, AGAIN):
            room.make_room()
            if row.operation == "unshelve":
                room.fill("source")
        if row.next == ANOTHER:
            self._delete()
            room.make_room()
            self._prepare()
        if row.next == TAKEN_AWAY:
            room.placement.call(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=self.uuid))
        if row.next == CONFIRM:
            self._give("confirm")
        elif row.next in (REBUILD, DELETE):
            self._give("rebuild" if row.next == REBUILD else "delete")
        elif row.next == ELSEWHERE:
            self._give(row.operation, "alternate")
        else:
            self._give(row.operation, drop_extras=row.next == DROPPING)


_END, _WRITE = "step.*.send.placement.end_move", "step.*.write.begin"
#: The hosts that accept a claim, then do nothing and do not answer.
GIVEN_UP = {ONE_GIVEN_UP: ("destination",), ALL_GIVEN_UP: ("source", *OTHERS)}


def played(row: Row, room: Room) -> list[str]:
    """Play a row; return the differences from the table, or the error."""
    began = time.monotonic()
    try:
        return Play(row, room, room.troubles).run()
    except Exception as fault:  # noqa: BLE001 - every row must be reported
        return [f"{row.operation}, {row.trouble}: {type(fault).__name__}: {fault} ({time.monotonic() - began:.0f} s)"]
