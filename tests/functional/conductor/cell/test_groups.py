"""Test instances with resource groups: the allocations of each selected host are claimed, released and sent to it."""

from typing import Any

import pytest
from msgspec import structs
from support.conductor.builders import SPEC, FakeScheduler, World, node, selection

from moorage.cli.shell import main
from moorage.ids import derived
from moorage.messages import SelectDestinations, SwapClaim
from moorage.model import AllocationRequest, ProviderAmounts, ResourceGroup, Selection

POOL = derived("tests", "pool")


def gpu(host: str) -> str:
    return derived("tests", "gpu", host)


def divided(given: Selection) -> Selection:
    """Return the selection with a GPU of its host and the disk of a pool."""
    amounts = {
        given.compute_node_uuid: SPEC.resources,
        gpu(given.service_host): {"VGPU": 2, "VCPU": 1},
        POOL: {"DISK_GB": 20},
    }
    request = AllocationRequest(
        allocations={uuid: ProviderAmounts(resources=each) for uuid, each in amounts.items()},
        mappings={"": (given.compute_node_uuid, POOL), "g": (gpu(given.service_host),)},
    )
    return structs.replace(given, allocation_request=request, shared_providers=(POOL,))


class DividesHosts(FakeScheduler):
    def decide(self, message: SelectDestinations) -> list[list[Selection]]:
        return [[divided(one) for one in selections] for selections in super().decide(message)]


def test_each_host_is_sent_the_mapping_of_its_own_providers_to_groups(world: World) -> None:
    world.replace(DividesHosts(world.placement))
    world.agent.failing = {"a"}

    [uuid] = world.build()
    world.becomes(uuid, "active")

    for message, host in zip(world.agent.builds, "ab", strict=True):
        assert message.resources == {**SPEC.resources, "VGPU": 2, "VCPU": SPEC.resources["VCPU"] + 1}
        assert message.allocation_request is not None
        assert message.allocation_request.mappings == {"": (node(host), POOL), "g": (gpu(host),)}
        assert message.unguarded().lowest_version() == "1.1"


def test_a_fall_back_releases_and_claims_the_allocations_of_each_selection(world: World) -> None:
    world.replace(DividesHosts(world.placement))
    world.agent.failing = {"a"}

    [uuid] = world.build()
    world.becomes(uuid, "active")

    [swap] = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert swap.released == divided(selection("a")).allocation_request
    assert swap.claimed == divided(selection("b")).allocation_request
    assert swap.root_provider_uuid == node("b")


def test_a_build_on_the_compute_node_alone_needs_no_newer_version_of_the_agent(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    [message] = world.agent.builds
    assert message.resources == SPEC.resources
    assert message.unguarded().lowest_version() == "1.0"


def test_groups_are_requested_by_command(world: World, moorage: Any) -> None:
    words = (
        "--vcpus 2 --memory-mb 64 --required CUSTOM_A --resource PCPU=1 --root-forbidden CUSTOM_OLD "
        "--group left --resource VGPU=1 --required in:CUSTOM_B,CUSTOM_C --group right --resource VGPU=2 "
        "--forbidden CUSTOM_D --group-policy isolate --same-subtree left,right --wait"
    )
    status, rows = moorage("instance build", *words.split())
    assert (status, [row["state"] for row in rows]) == (0, ["active"])

    [spec] = [message.request_spec for message in world.scheduler.requests]
    assert spec.resources == {"VCPU": 2, "MEMORY_MB": 64, "PCPU": 1}
    assert spec.groups == {
        "": ResourceGroup(resources={"PCPU": 1}, required=("CUSTOM_A",)),
        "left": ResourceGroup(resources={"VGPU": 1}, any_of=(("CUSTOM_B", "CUSTOM_C"),)),
        "right": ResourceGroup(resources={"VGPU": 2}, forbidden=("CUSTOM_D",)),
    }
    assert (spec.group_policy, spec.same_subtree) == ("isolate", (("left", "right"),))
    assert spec.root_forbidden == ("CUSTOM_OLD",)


@pytest.mark.parametrize(
    "words",
    [
        "--resource VGPU",
        "--resource VGPU=0",
        "--resource VGPU=1 --resource VGPU=2",
        "--required custom_lower",
        "--required in:A,",
        "--group spaced%out",
        "--group a --member-of nobody",
        "--in-tree nobody",
        "--group-policy apart",
    ],
)
def test_an_invalid_option_of_a_group_is_named_in_the_error(
    words: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = ["instance", "build", "--vcpus", "1", "--memory-mb", "1", *words.split()]
    with pytest.raises(SystemExit):
        main(given)
    assert words.split()[-2] in capsys.readouterr().err
    assert not world.scheduler.requests
