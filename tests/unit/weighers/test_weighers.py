"""Test the preference of each weigher, and how it reads its configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.scheduler.builders import CELLS, host_cache, host_row, provider, spec
from support.scheduler.plugin_cases import a_weigher, attributes, hosts, imaged, weights
from support.scheduler.trees import child, groups, host_cache_of, node

from moorage import errors
from moorage.config import options
from moorage.model import Destination
from moorage.testing.builders import inventory
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import Weighted, load_weighers
from scheduler.view.snapshot import Snapshot


@pytest.mark.parametrize(
    ("name", "multiplier"),
    [
        ("io_ops", -1.0),
        ("num_instances", 0.0),
        ("hypervisor_version", 1.0),
        ("pci", 1.0),
        ("build_failure", 1_000_000.0),
        ("cross_cell", 1_000_000.0),
        ("image_properties", 0.0),
        ("metrics", 1.0),
        ("packing", 1.0),
    ],
)
def test_the_default_multipliers_are_novas(name: str, multiplier: float) -> None:
    assert load_weighers(options.new(), [name])[0].multiplier == multiplier


@pytest.mark.parametrize("name", ["server_group_soft_affinity", "server_group_soft_anti_affinity"])
def test_a_soft_rule_outweighs_everything_but_failed_builds_and_cells(name: str) -> None:
    every = load_weighers(
        options.new(), ["ram", "cpu", "disk", "pci", "packing", "hypervisor_version", "metrics", name]
    )
    *others, soft = (weigher.multiplier for weigher in every)
    assert sum(others) < soft / 100
    [failures] = load_weighers(options.new(), ["build_failure"])
    assert soft < failures.multiplier / 100


def test_instances_and_io_operations_are_counted(tmp_path: Path) -> None:
    view = hosts({"instances": 2, "io_ops": 1}, {}, {"instances": 1, "io_ops": 7})
    assert weights(a_weigher("num_instances", tmp_path), view) == [2.0, 0.0, 1.0]
    assert weights(a_weigher("io_ops", tmp_path), view) == [1.0, 0.0, 7.0]


@pytest.mark.parametrize(
    ("version", "weight"),
    [
        (6001002, 6001002.0),
        ("6.1.2", 6001002.0),
        ("6.1", 6001000.0),
        ("10", 10_000_000.0),
        ("10.0.0.7", 10_000_000.0),
        (" 6.1.2 ", 6001002.0),
        ("6.1.5000", 6001999.0),
        ("6.1-rc1", 0.0),
        ("", 0.0),
        (0, 0.0),
        (-6001002, 0.0),
        (10**30, 0.0),
        ("9" * 5000, 999_000_000.0),
        (f"{'0' * 5000}7.0001", 7_001_000.0),
        (True, 1.0),
        (6.1, 0.0),
        ([6, 1], 0.0),
    ],
)
def test_the_newer_hypervisor_is_preferred(tmp_path: Path, version: Any, weight: float) -> None:
    plugin = a_weigher("hypervisor_version", tmp_path)
    assert weights(plugin, attributes({"hypervisor_version": version}, {})) == [weight, 0.0]


def test_hosts_with_fewer_free_devices_are_preferred(tmp_path: Path) -> None:
    devices = [
        node(0, VCPU=8),
        node(1, VCPU=8, PCI_DEVICE=4),
        node(2, VCPU=8),
        child(2, 1, SRIOV_NET_VF=inventory(8, used=6)),
        child(2, 2, CUSTOM_PCI_8086_10ED=inventory(3)),
        node(3, VCPU=8, PCI_DEVICE=500),
        node(4, VCPU=8, CUSTOM_GOLD=4),
        node(5, VCPU=8, PCI_DEVICE=inventory(2, used=5)),
    ]
    view = host_cache_of(*devices, hosts=6).snapshot()
    assert weights(a_weigher("pci", tmp_path), view) == [100.0, 96.0, 95.0, 1.0, 100.0, 100.0]
    assert weights(a_weigher("pci", tmp_path, pci_resource_classes="CUSTOM_G*"), view) == [100.0] * 4 + [96.0, 100.0]
    assert weights(a_weigher("pci", tmp_path), hosts({}, {})) == [100.0, 100.0]


def test_hosts_with_failed_builds_have_lower_weights(tmp_path: Path) -> None:
    view = hosts({"failed_builds": 3.0}, {}, {"failed_builds": 0.5})
    assert weights(a_weigher("build_failure", tmp_path), view) == [-3.0, 0.0, -0.5]


def test_a_server_that_may_leave_its_cell_stays_if_it_can(tmp_path: Path) -> None:
    plugin, view = a_weigher("cross_cell", tmp_path), hosts({"cell_uuid": CELLS[0]}, {"cell_uuid": CELLS[1]})
    may_leave = spec(requested_destination=Destination(cell=CELLS[1], allow_cross_cell_move=True))
    assert plugin.concerns(may_leave)
    assert weights(plugin, view, may_leave) == [-1.0, 1.0]
    for wanted in (None, Destination(cell=CELLS[1]), Destination(allow_cross_cell_move=True)):
        assert not plugin.concerns(spec(requested_destination=wanted))
        assert weights(plugin, view, spec(requested_destination=wanted)) == [0.0, 0.0]


ON_HOSTS: tuple[Mapping[str, Any], ...] = (
    {"image_properties": {"os_distro=debian": 2, "hw_machine_type=q35": 1}},
    {"image_properties": {"os_distro=fedora": 5}},
    {},
)


@pytest.mark.parametrize(
    ("setting", "properties", "expected"),
    [
        ("", {"os_distro": "debian"}, [2.0, 0.0, 0.0]),
        ("", {"os_distro": "debian", "hw_machine_type": "q35"}, [3.0, 0.0, 0.0]),
        ("", {"os_distro": "fedora"}, [0.0, 5.0, 0.0]),
        ("os_distro=0.5", {"os_distro": "debian", "hw_machine_type": "q35"}, [1.0, 0.0, 0.0]),
        ("os_distro=-1", {"os_distro": "fedora"}, [0.0, -5.0, 0.0]),
        ("hw_machine_type=2,os_distro=1", {"os_distro": "debian", "hw_machine_type": "q35"}, [4.0, 0.0, 0.0]),
        ("hw_machine_type=2", {"os_distro": "debian"}, [0.0, 0.0, 0.0]),
        ("", {}, [0.0, 0.0, 0.0]),
    ],
)
def test_servers_of_similar_images_are_counted(
    tmp_path: Path, setting: str, properties: dict[str, str], expected: list[float]
) -> None:
    plugin = a_weigher("image_properties", tmp_path, image_props_weight_setting=setting)
    assert weights(plugin, hosts(*ON_HOSTS), imaged(**properties)) == expected


def test_the_weigher_does_not_apply_to_images_without_weighed_properties(tmp_path: Path) -> None:
    plugin = a_weigher("image_properties", tmp_path, image_props_weight_setting="os_distro=1,hw_machine_type=0")
    assert plugin.concerns(imaged(os_distro="debian"))
    assert not plugin.concerns(imaged(hw_machine_type="q35"))
    assert not plugin.concerns(imaged())


METRICS = attributes(
    {"metrics": {"cpu.percent": 50, "pressure": 0.5}},
    {"metrics": {"cpu.percent": "10", "pressure": 2}},
    {"metrics": {"cpu.percent": 10}},
    {"metrics": {"cpu.percent": 10, "pressure": "high"}},
)


def metrics(folder: Path, **changes: str) -> Any:
    settings = {"metrics_weight_setting": "cpu.percent=-1.0,pressure=4", "metrics_required": "false"}
    return a_weigher("metrics", folder, **settings | changes)


def test_metrics_are_added_up_by_their_ratios(tmp_path: Path) -> None:
    assert weights(metrics(tmp_path), METRICS) == [-48.0, -2.0, -10000.0, -10000.0]
    assert weights(metrics(tmp_path, metrics_weight_of_unavailable="-7"), METRICS)[2:] == [-7.0, -7.0]
    assert not metrics(tmp_path, metrics_weight_setting="").concerns(spec())


def rank(plugin: Any, view: Snapshot, feasible: list[bool]) -> Any:
    return Funnel([], [Weighted("metrics", plugin, 1.0)]).rank(view, spec(), np.array(feasible), seed=0)


def test_a_missing_required_metric_is_an_error_on_feasible_hosts_only(tmp_path: Path) -> None:
    plugin = metrics(tmp_path, metrics_required="true")
    assert np.isnan(weights(plugin, METRICS)).tolist() == [False, False, True, True]
    # Infeasible hosts need not report the metric.
    assert rank(plugin, METRICS, [True, True, False, False]).weights.tolist() == [0.0, 1.0]
    with pytest.raises(errors.BadPluginValue, match=r"weigher metrics cannot use .*: its score of host host2 is nan"):
        rank(plugin, METRICS, [True, True, True, False])


@pytest.mark.parametrize("setting", ["cpu.percent", "cpu.percent=much", "=1", "a=1,a=2", "a=nan", "a=1=2"])
@pytest.mark.parametrize("name", ["metrics", "image_properties"])
def test_an_error_names_a_setting_without_a_valid_ratio(tmp_path: Path, name: str, setting: str) -> None:
    option = {"metrics": "metrics_weight_setting", "image_properties": "image_props_weight_setting"}[name]
    with pytest.raises(errors.ConfigurationError, match=rf"\[weighers\] {option}"):
        a_weigher(name, tmp_path, **{option: setting})


def packed(*used: Mapping[str, int], **changes: Any) -> Snapshot:
    rows = [host_row(number) for number in range(len(used))]
    totals = {"VCPU": 16, "MEMORY_MB": 1024, "DISK_GB": 100} | changes
    providers = [
        provider(row, 0, **{name: inventory(total, used=one.get(name, 0)) for name, total in totals.items()})
        for row, one in zip(rows, used, strict=True)
    ]
    return host_cache(rows, providers).snapshot()


def test_packing_prefers_the_host_that_would_be_fullest(tmp_path: Path) -> None:
    view = packed(
        {"VCPU": 4, "MEMORY_MB": 256, "DISK_GB": 25}, {"VCPU": 8, "MEMORY_MB": 512, "DISK_GB": 50}, {}, {"MEMORY_MB": 1}
    )
    scores = weights(a_weigher("packing", tmp_path), view, spec(vcpus=4, memory_mb=256, root_gb=25))
    assert scores[:3] == [0.5, 0.75, 0.25 - 2.0]
    # A host in use comes before any empty one, even if very little of it is used.
    assert np.argsort(scores).tolist() == [2, 3, 0, 1]


def test_packing_counts_the_amounts_of_all_groups(tmp_path: Path) -> None:
    view = packed(
        {"MEMORY_MB": 512, "CUSTOM_GOLD": 5}, {"MEMORY_MB": 512, "CUSTOM_SILVER": 5}, CUSTOM_GOLD=10, CUSTOM_SILVER=10
    )
    golden = groups(gold={"CUSTOM_GOLD": 5}, more={"CUSTOM_GOLD": 1})
    request = spec(vcpus=8, memory_mb=256, root_gb=0, groups=golden, group_policy="none")
    # Half of the virtual CPUs and three quarters of the memory; all of the gold, or three fifths of it.
    assert weights(a_weigher("packing", tmp_path), view, request) == pytest.approx([2.25 / 3, 1.85 / 3])


def test_packing_gives_an_over_full_host_no_more_than_a_full_one(tmp_path: Path) -> None:
    scores = weights(
        a_weigher("packing", tmp_path),
        packed({"MEMORY_MB": 1024, "VCPU": 48}, {"MEMORY_MB": 1024, "VCPU": 16}),
        spec(vcpus=1, memory_mb=1, root_gb=0),
    )
    assert scores == [1.0, 1.0]


def test_packing_weighs_hosts_without_the_requested_classes(tmp_path: Path) -> None:
    assert weights(a_weigher("packing", tmp_path), host_cache([host_row(0)], []).snapshot()) == [1.0 - 2.0]
