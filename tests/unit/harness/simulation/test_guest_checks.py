"""Test what the simulation finds wrong with the guests of a cloud at rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compute.driver import GuestOrder
from compute.fake.guest_file import GuestFile
from harness.simulation.clients.answers import Broken
from harness.simulation.cloud import CELL_WITH_POOL, WHOLE
from harness.simulation.guest_checks import GuestChecks
from moorage import ids
from moorage.messages import ShowInstance
from moorage.model import Flavor, Guest, Image, Instance, Migration, RequestSpec, Resources

HOST, OTHER = "cell1-host-0001", "cell1-host-0002"
FLAVOR = Flavor(vcpus=1, memory_mb=1024, root_gb=10)
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}


@dataclass
class RestingCloud:
    """The guests of a cloud that is not running, and one instance."""

    folder: Path
    cell_names: tuple[str, ...] = ("cell1", CELL_WITH_POOL)
    lost_guests: set[tuple[str, str]] = field(default_factory=set)
    images: dict[str, str | None] = field(default_factory=dict)
    uuid: str = field(default_factory=ids.fresh)

    def guests_file(self, cell: str) -> Path:
        return self.folder / f"{cell}.guests"

    def put(self, host: str = HOST, image: str | None = None, resources: Resources = AMOUNTS) -> GuestOrder:
        """Put a guest that runs on a host, and return an order about it."""
        order = GuestOrder(ids.fresh(), self.uuid, ids.fresh(), ids.fresh())
        self.images[order.attempt_id] = image
        guest = Guest(
            instance_uuid=self.uuid,
            host=host,
            attempt_id=order.attempt_id,
            claim_id=order.claim_id,
            resources=dict(resources),
        )
        file = self.opened(host)
        file.begin(guest, WHOLE)
        file.finish(guest)
        file.close()
        return order

    def stop(self, order: GuestOrder, host: str = HOST) -> None:
        file = self.opened(host)
        file.begin_order(host, order, "stop")
        file.finish_order(host, order, "stop")
        file.close()

    def opened(self, host: str) -> GuestFile:
        file = GuestFile(self.guests_file(host.partition("-")[0]))
        file.open()
        return file

    def check(self, state: str = "active", host: str = HOST, image: str | None = None) -> None:
        """Check the guests.

        :raises Broken: a promise is broken.
        """
        migration = Migration(
            uuid=ids.fresh(), instance_uuid=self.uuid, kind="cold-migration", state="moved", source_host=OTHER
        )
        moving = migration.uuid if state == "moved" else None
        spec = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR, image=Image(id=image))
        instance = Instance(
            uuid=self.uuid,
            project_id="p",
            user_id="u",
            flavor=FLAVOR,
            state=state,
            host=host,
            migration_uuid=moving,
            request_spec=spec,
        )

        def show(message: ShowInstance) -> Instance:
            assert (message.instance_uuid, message.with_request) == (self.uuid, True)
            return instance

        migrations: Mapping[str, Migration] = {migration.uuid: migration}
        GuestChecks(self, show).check([instance], migrations)  # type: ignore[arg-type]


@pytest.fixture
def cloud(tmp_path: Path) -> RestingCloud:
    return RestingCloud(tmp_path)


def test_an_active_server_has_one_guest_that_runs(cloud: RestingCloud) -> None:
    order = cloud.put()
    cloud.check()
    cloud.stop(order)
    with pytest.raises(Broken, match=r"promise 10: .* should have .*one that runs"):
        cloud.check()


def test_a_server_without_its_guest_is_found_unless_the_host_has_lost_it(cloud: RestingCloud) -> None:
    with pytest.raises(Broken, match="promise 3"):
        cloud.check()
    cloud.lost_guests.add((HOST, cloud.uuid))
    cloud.check()
    cloud.stop(cloud.put())
    with pytest.raises(Broken, match="promise 10"):
        cloud.check()


def test_a_guest_that_no_server_has_is_found(cloud: RestingCloud) -> None:
    cloud.put()
    cloud.put(OTHER)
    with pytest.raises(Broken, match=f"promise 3: {OTHER}"):
        cloud.check()


def test_two_guests_of_a_server_that_run_on_one_host_are_found(cloud: RestingCloud) -> None:
    cloud.put()
    cloud.put()
    with pytest.raises(Broken, match="promise 2"):
        cloud.check()


def test_the_guest_on_the_source_of_a_completed_move_is_stopped(cloud: RestingCloud) -> None:
    cloud.put()
    source = cloud.put(OTHER)
    with pytest.raises(Broken, match=f"promise 10: {OTHER}"):
        cloud.check("moved")
    cloud.stop(source, OTHER)
    cloud.check("moved")


def test_the_guest_of_a_server_in_error_may_be_stopped(cloud: RestingCloud) -> None:
    order = cloud.put()
    cloud.check("error")
    cloud.stop(order)
    cloud.check("error")


@pytest.mark.parametrize("state", ["deleted", "shelved"])
def test_a_server_that_was_deleted_or_shelved_has_no_guest(cloud: RestingCloud, state: str) -> None:
    cloud.check(state)
    cloud.put()
    with pytest.raises(Broken, match="promise 3"):
        cloud.check(state)


def test_a_guest_of_another_image_than_its_server_is_found(cloud: RestingCloud) -> None:
    order = cloud.put(image="one")
    cloud.check(image="one")
    cloud.images[order.attempt_id] = "another"
    with pytest.raises(Broken, match=r"promise 4: .* image another"):
        cloud.check(image="one")


def test_a_guest_of_another_size_than_its_server_is_found(cloud: RestingCloud) -> None:
    cloud.put(resources={**AMOUNTS, "VCPU": 2})
    with pytest.raises(Broken, match=r"promise 4: .* needs"):
        cloud.check()


def test_the_disk_of_a_guest_is_not_on_a_host_that_uses_the_pool(cloud: RestingCloud) -> None:
    host = f"{CELL_WITH_POOL}-host-0001"
    cloud.put(host, resources={"VCPU": 1, "MEMORY_MB": 1024})
    cloud.check(host=host)
