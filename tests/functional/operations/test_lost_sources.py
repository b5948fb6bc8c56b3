"""Test evacuations of servers whose host and whose allocations the store has lost, on a whole cloud."""

from collections.abc import Iterator

import pytest
from msgspec import structs
from sqlalchemy import delete, update
from support.operations.cloud import TroublesomeCloud, plan
from support.operations.room import SPEC, until_answered

from conductor.cell.hosts.reach import HostReach
from conductor.schema import cell_hosts
from harness.waiting import wait_until
from moorage import ids
from moorage.messages import (
    BuildInstances,
    DeleteAllocations,
    DeleteHost,
    EvacuateInstance,
    GetAllocations,
    ListClaims,
    SetHost,
    ShowInstance,
    ShowMigration,
)
from moorage.messages.wire import Message, R
from moorage.model import Consumer, Instance, Migration
from placement_store.schema import consumers


class LostHost:
    """A cloud that is to lose its last host, with a server there."""

    def __init__(self, cloud: TroublesomeCloud, patches: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        self.patches = patches
        *self.others, self.lost = sorted(host.service_host for host in cloud.hosts())
        self.uuid = ids.fresh()
        spec = structs.replace(SPEC, force_hosts=(self.lost,))
        self.order(BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=(self.uuid,)))
        wait_until(lambda: self.show().state == "active", "it to be built")

    def order(self, message: Message[R]) -> R:
        return until_answered(lambda: self.cloud.client(message.topic).call(message))

    def show(self) -> Instance:
        return until_answered(lambda: self.cloud.client("conductor").call(ShowInstance(instance_uuid=self.uuid)))

    def lose_allocations(self) -> None:
        self.order(DeleteAllocations(request_id=ids.fresh(), consumer_uuid=self.uuid))
        lost = delete(consumers).where(consumers.c.uuid == self.uuid)
        self.cloud.database.write(lambda connection: connection.execute(lost))

    def kill(self) -> None:
        """Let the agent end with all its hosts, and start again without the host."""
        self.cloud.stop_service("compute-cell1")
        self.cloud.add("compute-cell1", self.cloud.compute("cell1", len(self.others)))
        self.order(SetHost(request_id=ids.fresh(), service_host=self.lost, forced_down=True))

    def lose(self) -> None:
        """Lose the server's allocations, then the host."""
        self.lose_allocations()
        self.kill()
        self.order(DeleteHost(request_id=ids.fresh(), service_host=self.lost))

    def fall_silent(self) -> None:
        """Let time pass for the lost host, and for the conductor of its cell since its start."""
        self.patches.setattr(HostReach, "has_lasted", lambda *_: True)
        this = cell_hosts.c.service_host == self.lost
        statement = update(cell_hosts).where(this).values(last_seen=cell_hosts.c.last_seen - 3600)
        self.cloud.database.write(lambda connection: connection.execute(statement))

    def evacuate(self) -> Migration:
        """Order an evacuation; return its migration when it has ended."""
        ordered = self.order(EvacuateInstance(request_id=ids.fresh(), instance_uuid=self.uuid))
        shown = ShowMigration(uuid=ordered.migration_uuid)

        def migration() -> Migration:
            return until_answered(lambda: self.cloud.client("conductor").call(shown))

        wait_until(lambda: migration().state in ("confirmed", "failed"), "it to be evacuated")
        return migration()

    def held(self) -> Consumer:
        return self.cloud.client("placement").call(GetAllocations(consumer_uuid=self.uuid))


@pytest.fixture
def lost_host() -> Iterator[LostHost]:
    with TroublesomeCloud(plan("combine", hosts=3)) as cloud, pytest.MonkeyPatch.context() as patches:
        yield LostHost(cloud, patches)


def test_a_server_is_evacuated_although_the_store_has_lost_its_host_and_its_allocations(lost_host: LostHost) -> None:
    lost_host.lose()
    lost_host.fall_silent()

    assert lost_host.evacuate().state == "confirmed"

    after = lost_host.show()
    assert (after.state, after.host in lost_host.others) == ("active", True)
    assert lost_host.held().claim_id == after.claim_id
    assert lost_host.held().allocations


def test_a_server_without_allocations_leaves_a_residue_on_the_dead_host_that_it_is_evacuated_from(
    lost_host: LostHost,
) -> None:
    lost_host.lose_allocations()
    lost_host.kill()

    assert lost_host.evacuate().state == "confirmed"

    assert lost_host.show().host in lost_host.others
    residues = [one for one in lost_host.order(ListClaims(residues=True)) if one.claim_id is None]
    assert [one.accepted_host for one in residues] == [lost_host.lost]


def test_a_server_that_cannot_be_evacuated_from_a_lost_host_can_be_evacuated_later(lost_host: LostHost) -> None:
    lost_host.lose()
    lost_host.fall_silent()
    lost_host.cloud.faults.failing = {(lost_host.uuid, host) for host in lost_host.others}

    assert lost_host.evacuate().state == "failed"

    before = lost_host.show()
    assert (before.state, before.host) == ("active", lost_host.lost)
    assert (lost_host.held().claim_id, lost_host.held().allocations) == (before.claim_id, {})
    lost_host.cloud.faults.failing.clear()
    assert lost_host.evacuate().state == "confirmed"
    assert lost_host.show().host in lost_host.others


def test_a_server_whose_host_is_unknown_to_the_store_but_may_be_alive_is_not_evacuated(lost_host: LostHost) -> None:
    lost_host.lose()
    before = lost_host.show()

    ended = lost_host.evacuate()

    assert ended.state == "failed"
    assert "has no record and may be alive" in str(ended.reason)
    after = lost_host.show()
    assert (after.state, after.host, after.claim_id) == ("active", lost_host.lost, before.claim_id)


def test_a_host_that_neither_its_cell_nor_the_store_has_on_record_is_dead_once_it_could_have_reported(
    lost_host: LostHost,
) -> None:
    lost_host.lose()
    this = delete(cell_hosts).where(cell_hosts.c.service_host == lost_host.lost)
    lost_host.cloud.database.write(lambda connection: connection.execute(this))

    assert "may be alive" in str(lost_host.evacuate().reason)
    lost_host.fall_silent()
    assert lost_host.evacuate().state == "confirmed"
