"""Test drivers that distribute allocations in a reshape, and the command that prints the reshapes they want."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operations.instances import becomes, order, provider_tree, restart_agent

from compute.driver import ReshapeNeeded
from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import errors
from moorage.cli.shell import main
from moorage.messages import GetAllocations
from moorage.model import Flavor, HostReport, Reallocation, RequestSpec, ReshapePlan

HOST, AGENT = "cell1-host-0001", "agent-cell1"
#: Two GPUs with three VGPUs each; each guest has two VGPUs.
GPUS = {"gpus": 2, "vgpus_per_gpu": 3}
SPEC = RequestSpec(
    project_id="p",
    user_id="u",
    flavor=Flavor(vcpus=1, memory_mb=512, root_gb=1, extra_specs={"resources:VGPU": "2"}),
)


@pytest.fixture
def cloud() -> Iterator[RunningCloud]:
    settings: dict[str, Any] = {"compute": {"report_interval": 0.1}, "fake_driver": {"layout": "flat", **GPUS}}
    with RunningCloud(CloudSpec(hosts=1, settings=settings)) as one:
        yield one


@pytest.fixture
def guests(cloud: RunningCloud) -> list[str]:
    uuids = order(cloud, SPEC, count=3)
    for uuid in uuids:
        becomes(cloud, uuid, "active")
    return uuids


class DistributingDriver(FakeDriver):
    """Distributes the allocations of the consumers that a test has named, after a reshape was refused."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.consumers: list[str] = []
        self.refusals: list[errors.MoorageError] = []
        self.plans: list[ReshapePlan] = []

    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        try:
            super().update_provider_tree(host, tree)
        except ReshapeNeeded as needed:
            dealt = self.distribution(host) if self.refusals else []
            raise ReshapeNeeded(needed.instructions, dealt) from None

    def distribution(self, host: HostReport) -> list[Reallocation]:
        places = [(0, 0, 2), (1, 1, 2), (2, 0, 1), (2, 1, 1)]
        return [
            Reallocation(
                consumer_uuid=self.consumers[consumer],
                from_resource_provider=host.compute_node_uuid,
                to_resource_provider=f"{host.nodename}_gpu{gpu}",
                resources={"VGPU": amount},
            )
            for consumer, gpu, amount in places
            if self.consumers
        ]

    def reshaped(self, host: HostReport, plan: ReshapePlan) -> None:
        self.plans.append(plan)
        raise RuntimeError("an exception of the driver does not undo the reshape")

    def reshape_refused(self, host: HostReport, refusal: errors.MoorageError) -> None:
        self.refusals.append(refusal)


def vgpus(cloud: RunningCloud, uuid: str) -> dict[str, int]:
    """Return the VGPUs that a consumer holds of each provider."""
    names = {one.uuid: name for name, one in provider_tree(cloud, HOST).items()}
    held = cloud.client("placement").call(GetAllocations(consumer_uuid=uuid)).allocations
    return {names[uuid]: part.resources["VGPU"] for uuid, part in held.items() if "VGPU" in part.resources}


def test_a_driver_that_is_told_of_a_refused_reshape_distributes_the_allocations_itself(
    cloud: RunningCloud, guests: list[str]
) -> None:
    driver = restart_agent(cloud, 1, DistributingDriver, layout="nested", **GPUS)

    wait_until(lambda: len(driver.refusals) >= 2, "a reshape that is impossible")
    assert {type(refusal) for refusal in driver.refusals} == {errors.ImpossibleDeal}
    assert set(provider_tree(cloud, HOST)) == {HOST}
    assert [vgpus(cloud, uuid) for uuid in guests] == [{HOST: 2}] * 3

    driver.consumers = guests
    wait_until(lambda: bool(driver.plans), "the reshape")

    assert [vgpus(cloud, uuid) for uuid in guests] == [{"gpu0": 2}, {"gpu1": 2}, {"gpu0": 1, "gpu1": 1}]
    [plan] = driver.plans
    assert sum(one.resources.get("VGPU", 0) for one in plan.dealt) == 6
    wait_until(lambda: "VGPU" not in provider_tree(cloud, HOST)[HOST].inventories, "the rest of the report")


def test_a_reshape_that_a_driver_wants_is_carried_out_from_a_file_while_its_agent_is_stopped(
    cloud: RunningCloud, guests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.stop_service("compute-cell1")
    config, plan = tmp_path / "moorage.conf", tmp_path / "reshape.yaml"
    options = "\n".join(
        f"{name} = {value}" for name, value in cloud.driver_options("cell1", 1, layout="nested", **GPUS).items()
    )
    transport = cloud.configuration().transport_url
    config.write_text(f"[DEFAULT]\ntransport_url = {transport}\n[compute]\ndriver = fake\n[fake_driver]\n{options}\n")
    command = ["--config-file", str(config)]

    capsys.readouterr()
    wanted = ["compute", "--cell", "cell1", "--agent", AGENT, "--wanted-reshapes"]
    assert main([*command, *wanted]) == 0
    text = capsys.readouterr().out
    assert f"# {HOST}\n" in text
    assert set(provider_tree(cloud, HOST)) == {HOST}, "the command changes nothing"
    plan.write_text(text)
    refused = main([*command, "resource", "provider", "reshape", str(plan), "--dry-run"])
    assert refused != 0, "three guests with two VGPUs each do not fit on two GPUs with three VGPUs each"

    [entry] = yaml.safe_load(text)["reshape"]
    uuids = {child["name"]: child["uuid"] for child in entry["providers"]}
    gpu = [uuids[f"{HOST}_gpu{number}"] for number in range(2)]
    dealt = [(guests[0], gpu[0], 2), (guests[1], gpu[1], 2), (guests[2], gpu[0], 1), (guests[2], gpu[1], 1)]
    lines = ["  allocations:"]
    for consumer, place, amount in dealt:
        lines += [f"  - consumer_uuid: {consumer}", f"    from_resource_provider: {HOST}"]
        lines += [f"    to_resource_provider: {place}", f"    resources: {{VGPU: {amount}}}"]
    plan.write_text(text + "\n".join(lines) + "\n")
    assert main([*command, "resource", "provider", "reshape", str(plan)]) == 0
    assert vgpus(cloud, guests[2]) == {"gpu0": 1, "gpu1": 1}

    capsys.readouterr()
    assert main([*command, *wanted]) == 0
    assert capsys.readouterr().out == "# The driver wants nothing reshaped.\n"
