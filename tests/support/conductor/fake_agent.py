"""An agent whose hosts accept builds and orders, pass both gates, and report; a test chooses which hosts fail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moorage import errors, ids
from moorage.bus.bus import Bus, serves
from moorage.messages import (
    AcceptInCell,
    BuildFailedInCell,
    BuildFinished,
    BuildOnHost,
    DestroyOnHost,
    Done,
    RebuildOnHost,
    StartOnHost,
    StopOnHost,
)
from support.conductor.fake_placement import CELL_1


class FakeAgent:
    """Accepts builds, passes both gates, and reports; a test chooses which hosts fail."""

    def __init__(self, bus: Bus) -> None:
        self.conductor = bus.client(f"conductor.{CELL_1.uuid}")
        self.threads = ThreadPoolExecutor(4)
        self.guests: dict[str, BuildOnHost] = {}
        self.failing: set[str] = set()
        #: What a failing host reports after its name.
        self.failure = "is broken"
        #: Whether a failing host reports that the build would fail on every host.
        self.fails_everywhere = False
        #: Hosts whose spawns do not end before `released` is set.
        self.hanging: set[str] = set()
        self.released = threading.Event()
        #: Hosts that do not answer to an order to destroy a guest.
        self.no_reply_to_destroy: set[str] = set()
        #: Hosts that do not answer to an order to stop, start or rebuild a guest, and hosts that fail to carry it out.
        self.no_reply_to_orders: set[str] = set()
        self.stuck: set[str] = set()
        #: Hosts that do not finish such an order.
        self.slow: set[str] = set()
        #: The attempts of stopped guests.
        self.stopped: set[str] = set()
        #: Every order to an existing guest, once for each time it was sent.
        self.orders: list[StopOnHost | StartOnHost | RebuildOnHost] = []
        #: Every order to build, once for each time it was sent.
        self.builds: list[BuildOnHost] = []
        self.destroyed: list[str] = []
        #: While it is clear, no started guest is reported as running.
        self.may_finish = threading.Event()
        self.may_finish.set()

    def build(self, message: BuildOnHost) -> None:
        """Carry out an attempt as a host does, up to its report."""
        try:
            self.accept(message)
        except errors.InvalidState as refusal:
            self.report_failed(message, f"the claim could not be accepted: {refusal}")
            return
        if message.host in self.failing:
            self.report_failed(message, f"{message.host} {self.failure}")
            return
        self.guests[message.attempt_id] = message
        if message.host in self.hanging:
            assert self.released.wait(60)
        assert self.may_finish.wait(60)
        self.finish(message)

    def build_on(self, host: str) -> BuildOnHost:
        """Return the first order to build on a host."""
        return next(build for build in self.builds if build.host == host)

    def accept(self, message: BuildOnHost) -> None:
        self.conductor.call(AcceptInCell(**_about(message), host=message.host))

    def finish(self, message: BuildOnHost) -> None:
        try:
            self.conductor.call(BuildFinished(**_about(message)))
        except errors.ClaimReleased:
            self.guests.pop(message.attempt_id, None)

    def report_failed(self, message: BuildOnHost, reason: str) -> None:
        self.conductor.call(
            BuildFailedInCell(**_about(message), reason=reason, no_other_host=self.fails_everywhere or None)
        )

    @serves(BuildOnHost)
    def build_instance(self, message: BuildOnHost) -> Done:
        known = {build.attempt_id for build in self.builds}
        self.builds.append(message)
        if message.attempt_id not in known and message.attempt_id not in self.destroyed:
            self.threads.submit(self.build, message)
        return Done()

    @serves(DestroyOnHost)
    def destroy_instance(self, message: DestroyOnHost) -> Done:
        if message.host in self.no_reply_to_destroy:
            raise errors.RequestInProgress(request_id=message.request_id)
        self.destroyed.append(message.attempt_id)
        self.guests.pop(message.attempt_id, None)
        self.stopped.discard(message.attempt_id)
        return Done()

    @serves(StopOnHost)
    def stop_instance(self, message: StopOnHost) -> Done:
        self.carry_out(message, "stop")
        self.stopped.add(message.attempt_id)
        return Done()

    @serves(StartOnHost)
    def start_instance(self, message: StartOnHost) -> Done:
        self.carry_out(message, "start")
        self.stopped.discard(message.attempt_id)
        return Done()

    @serves(RebuildOnHost)
    def rebuild_instance(self, message: RebuildOnHost) -> Done:
        self.carry_out(message, "rebuild")
        self.stopped.discard(message.attempt_id)
        return Done()

    def carry_out(self, message: StopOnHost | StartOnHost | RebuildOnHost, action: str) -> None:
        """Carry out an order if there is a guest for it."""
        self.orders.append(message)
        if message.host in self.no_reply_to_orders:
            raise errors.NoReply(topic=f"host {message.host}", method=message.method, seconds=0.0)
        if message.host in self.slow:
            raise errors.RequestInProgress(request_id=message.request_id)
        guest = self.guests.get(message.attempt_id)
        if guest is None or guest.claim_id != message.claim_id:
            raise errors.InvalidState(reason=f"attempt {message.attempt_id} has no guest here")
        if message.host in self.stuck:
            raise errors.GuestActionFailed(
                instance_uuid=message.instance_uuid, host=message.host, action=action, reason="it is stuck"
            )


def _about(build: BuildOnHost) -> dict[str, Any]:
    """Return a new request id, and the fields that name an attempt."""
    names = ("instance_uuid", "attempt_id", "claim_id")
    return {"request_id": ids.fresh()} | {name: getattr(build, name) for name in names}
