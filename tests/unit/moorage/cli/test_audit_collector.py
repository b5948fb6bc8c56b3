"""Test what an audit keeps of the answers of a cloud's parts, because a large cloud's would not fit into memory."""

import weakref
from typing import Any

from moorage.cli.audit.collector import AuditCollector
from moorage.cli.audit.command import examine
from moorage.cli.audit.findings import CloudState, judge
from moorage.config import options
from moorage.ids import derived
from moorage.messages import (
    AuditStore,
    CompareView,
    ListCells,
    ListHoldsInCell,
    ListHosts,
    ListInstances,
    ListResourceClasses,
    ListServices,
    ListStrangersInCell,
)
from moorage.messages.cell_holds import HoldsInCell
from moorage.model import Attempt, Cell, Flavor, HostState, Instance, InstanceHolds, ProviderAmounts, RecordedHold
from moorage.model.inspection import Holder, StoreAudit, ViewDrift

CELL, NODE = Cell(uuid=derived("collector", "cell"), name="cell1"), derived("collector", "node")
NAMES = ("agrees", "lost")


def uuid(kind: str, name: str) -> str:
    return derived("collector", kind, name)


HOST = HostState(
    service_host="h1",
    nodename="h1",
    compute_node_uuid=NODE,
    cell_uuid=CELL.uuid,
    agent="agent",
    availability_zone="nova",
    up=True,
    heartbeat_age=0.0,
)


def hold(name: str) -> RecordedHold:
    return RecordedHold(
        consumer_uuid=uuid("instance", name),
        consumer_type="INSTANCE",
        claim_id=uuid("claim", name),
        root_provider_uuid=NODE,
        accepted_by=uuid("attempt", name),
        accepted_host="h1",
        # The second class has been deleted since.
        allocations={NODE: ProviderAmounts(resources={"VCPU": 2, "CUSTOM_GONE": 1})},
        project_id="p",
        user_id="u",
    )


HELD = Holder(
    uuid=uuid("instance", "agrees"),
    consumer_type="INSTANCE",
    claim_id=uuid("claim", "agrees"),
    accepted_by=uuid("attempt", "agrees"),
    placed_on=NODE,
    allocations=1,
    held={NODE: {"VCPU": 2}},
    root_provider_uuids=(NODE,),
)


def instance(name: str) -> Instance:
    attempt = Attempt(attempt_id=uuid("attempt", name), number=1, host="h1", state="active", reason="moved")
    return Instance(
        uuid=uuid("instance", name),
        project_id="p",
        user_id="u",
        flavor=Flavor(vcpus=2, memory_mb=4096),
        state="active",
        cell_uuid=CELL.uuid,
        cell=CELL.name,
        attempts=(attempt,),
    )


def recorded(name: str) -> InstanceHolds:
    attempts = (uuid("attempt", name),)
    return InstanceHolds(
        instance_uuid=uuid("instance", name), state="active", settled=True, holds=(hold(name),), attempts=attempts
    )


class Cloud:
    """All parts of a cloud with two instances, of which the store has lost one."""

    ANSWERS: dict[type, Any] = {  # noqa: RUF012
        AuditStore: StoreAudit(holders=(HELD,)),
        CompareView: ViewDrift(hosts=1),
        ListCells: [CELL],
        ListHoldsInCell: HoldsInCell(instances=tuple(map(recorded, NAMES))),
        ListHosts: [HOST],
        ListInstances: list(map(instance, NAMES)),
        ListResourceClasses: ["VCPU"],
        ListServices: [],
        ListStrangersInCell: [],
    }

    def topic(self, *_where: str) -> "Cloud":
        return self

    def cell(self, _cell: Cell) -> "Cloud":
        return self

    def call(self, message: Any) -> Any:
        return self.ANSWERS[type(message)]


def test_what_an_instance_should_hold_is_kept_only_where_the_store_differs() -> None:
    clients: Any = Cloud()

    state = AuditCollector(options.new(), clients).collect()

    [agrees, lost] = state.recorded[CELL.uuid]
    assert (agrees.holds, lost.holds) == ((), (hold("lost"),))
    assert agrees.attempts == (uuid("attempt", "agrees"),), "residues are found by them"
    assert [(finding.kind, finding.subject) for finding in judge(state)] == [("unheld", uuid("instance", "lost"))]
    assert not state.unseen


def test_an_instance_keeps_what_findings_depend_on() -> None:
    clients: Any = Cloud()

    instances = AuditCollector(options.new(), clients).collect().instances

    assert instances is not None
    for kept, name in zip(instances, NAMES, strict=True):
        full = instance(name)
        assert (kept.uuid, kept.state, kept.cell_uuid, kept.cell) == (full.uuid, "active", CELL.uuid, CELL.name)
        assert [(one.attempt_id, one.host, one.state) for one in kept.attempts] == [
            (one.attempt_id, one.host, one.state) for one in full.attempts
        ]
        assert (kept.project_id, kept.attempts[0].reason) == ("", None)


def test_the_first_collection_is_dropped_before_the_second_one_begins() -> None:
    class Unseen(dict[str, str]):
        """Can be watched, unlike a plain dictionary."""

    looks: list[weakref.ref[Unseen]] = []

    def look() -> CloudState:
        assert all(former() is None for former in looks)
        unseen = Unseen({"the hosts": "away"})
        looks.append(weakref.ref(unseen))
        return CloudState(store=StoreAudit(holders=(Holder(allocations=1),)), instances=[], unseen=unseen)

    found, _unseen, _state = examine(look, 1.0, lambda _: None)

    assert len(looks) == 2
    assert [finding.kind for finding in found] == ["leaked"]
