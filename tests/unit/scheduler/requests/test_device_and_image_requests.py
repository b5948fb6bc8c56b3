"""Test that PCI aliases become groups and properties of images traits, and that invalid ones are refused."""

import json
from typing import Any

import pytest
from support.moorage.executed_lines import executed_lines
from support.scheduler.worded_requests import NOTHING_KNOWN, StillCloud, asked, group, loaded, narrowed

from moorage import errors
from moorage.model import ResourceGroup

ALIASES = [
    json.dumps({"name": "gpu", "resource_class": "PGPU", "traits": ["CUSTOM_FAST"]}),
    json.dumps({"name": "nic", "vendor_id": "8086", "product_id": "15aF"}),
]
GPU, NIC = group({"PGPU": 1}, required=("CUSTOM_FAST",)), group({"CUSTOM_PCI_8086_15AF": 1})
ALIAS = "pci_passthrough:alias"


@pytest.mark.parametrize(
    ("value", "groups", "policy"),
    [
        ("gpu", {"_PCI_gpu_0": GPU}, None),
        ("gpu:1", {"_PCI_gpu_0": GPU}, None),
        ("gpu:2", {"_PCI_gpu_0": GPU, "_PCI_gpu_1": GPU}, "none"),
        ("gpu:1, nic:1", {"_PCI_gpu_0": GPU, "_PCI_nic_0": NIC}, "none"),
        ("gpu:1,gpu:1", {"_PCI_gpu_0": GPU, "_PCI_gpu_1": GPU}, "none"),
    ],
)
def test_each_pci_device_is_a_group(value: str, groups: dict[str, ResourceGroup], policy: str | None) -> None:
    narrow = narrowed(asked({ALIAS: value}), "pci", pci_alias=ALIASES)
    assert narrow.groups == groups
    assert narrow.group_policy == policy


@pytest.mark.parametrize("value", ["", "gpu:", "gpu:0", "gpu:-1", "gpu:x", "gpu:100", "tpu:1", "gpu:1,,nic:1"])
def test_a_malformed_or_unknown_alias_is_refused_with_its_path(value: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        narrowed(asked({ALIAS: value}), "pci", pci_alias=ALIASES)
    assert caught.value.path == "$.flavor.extra_specs['pci_passthrough:alias']"


def test_far_too_many_devices_are_refused_at_once() -> None:
    wanted = asked({ALIAS: ",".join(["gpu:64"] * 100)})
    [(_, pci)] = loaded(["pci"], pci_alias=ALIASES)

    def refuse() -> None:
        with pytest.raises(errors.InvalidRequest, match="more than 64 resource groups"):
            pci.narrow(wanted, NOTHING_KNOWN)

    # Only the first 64 of the 6,400 groups are made, each with a comparison with those before.
    assert executed_lines(refuse) < 10_000


@pytest.mark.parametrize(
    "aliases",
    [
        ["gpu"],
        ["[]"],
        ['{"name": "gpu"}'],
        ['{"name": "gpu", "vendor_id": "10de"}'],
        ['{"name": "gpu", "resource_class": "PGPU", "vendor_id": "10de", "product_id": "1b38"}'],
        ['{"name": "a gpu", "resource_class": "PGPU"}'],
        ['{"name": "gpu", "resource_class": "pgpu"}'],
        ['{"name": "gpu", "resource_class": "PGPU", "colour": "red"}'],
        [ALIASES[0], ALIASES[0]],
    ],
)
def test_a_malformed_option_keeps_the_scheduler_from_starting(aliases: list[str]) -> None:
    with pytest.raises(errors.ConfigurationError, match="pci"):
        loaded(["pci"], pci_alias=aliases)


# --- Images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "changes", "required"),
    [
        ({}, {}, ()),
        ({"disk_format": "qcow2"}, {}, ("COMPUTE_IMAGE_TYPE_QCOW2",)),
        ({"disk_format": "RAW"}, {}, ("COMPUTE_IMAGE_TYPE_RAW",)),
        ({"disk_format": "qcow2"}, {"is_volume_backed": True}, ()),
        ({"disk_format": "qcow2"}, {"root_required": ("CUSTOM_A",)}, ("CUSTOM_A", "COMPUTE_IMAGE_TYPE_QCOW2")),
    ],
)
def test_the_format_of_an_image_is_a_trait_of_the_root(
    properties: dict[str, str], changes: dict[str, Any], required: tuple[str, ...]
) -> None:
    assert narrowed(asked({}, properties, **changes), "image_type").root_required == required


@pytest.mark.parametrize(
    ("properties", "required", "forbidden"),
    [
        ({"os_distro": "debian"}, (), ()),
        ({"trait:HW_CPU_X86_AVX2": "required"}, ("HW_CPU_X86_AVX2",), ()),
        ({"trait:CUSTOM_B": "required", "trait:CUSTOM_A": "required"}, ("CUSTOM_A", "CUSTOM_B"), ()),
        ({"trait:CUSTOM_OLD": "forbidden"}, (), ("CUSTOM_OLD",)),
    ],
)
def test_the_traits_of_an_image_are_required_or_forbidden(
    properties: dict[str, str], required: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    found = narrowed(asked({}, properties), "image_traits").resource_request.groups[""]
    assert (found.required, found.forbidden) == (required, forbidden)


@pytest.mark.parametrize(
    ("properties", "required"),
    [
        ({"hw_disk_bus": "virtio"}, ("COMPUTE_STORAGE_BUS_VIRTIO",)),
        ({"hw_cdrom_bus": "sata", "hw_disk_bus": "sata"}, ("COMPUTE_STORAGE_BUS_SATA",)),
        ({"hw_rescue_bus": "usb"}, ("COMPUTE_STORAGE_BUS_USB",)),
        ({"hw_video_model": "qxl"}, ("COMPUTE_GRAPHICS_MODEL_QXL",)),
        ({"hw_vif_model": "spapr-vlan"}, ("COMPUTE_NET_VIF_MODEL_SPAPR_VLAN",)),
        ({"hw_viommu_model": "intel"}, ("COMPUTE_VIOMMU_MODEL_INTEL",)),
        ({"hw_architecture": "x86_64"}, ("HW_ARCH_X86_64",)),
        # Another name of the same, as in the filter image_properties.
        ({"hw_architecture": "amd64"}, ("HW_ARCH_X86_64",)),
        ({"hw_emulation_architecture": "aarch64"}, ("COMPUTE_ARCH_AARCH64",)),
    ],
)
def test_the_devices_of_an_image_are_traits_of_the_root_where_the_operator_says_so(
    properties: dict[str, str], required: tuple[str, ...]
) -> None:
    request = asked({}, properties)
    assert narrowed(request, "image_traits") is request
    assert narrowed(request, "image_traits", image_metadata_prefilter=True).root_required == required


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("disk_format", "floppy"),
        ("disk_format", ""),
        ("trait:CUSTOM_A", "wanted"),
        ("trait:custom_a", "required"),
        ("trait:", "required"),
        ("hw_disk_bus", "magnetic"),
        ("hw_vif_model", ""),
    ],
)
def test_a_malformed_property_is_refused_with_its_path(name: str, value: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        narrowed(asked({}, {name: value}), "image_type", "image_traits", image_metadata_prefilter=True)
    assert caught.value.path == f"$.image.properties[{name!r}]"


# --- Disabled hosts ---------------------------------------------------------------------------------------------------


def test_disabled_hosts_are_forbidden_as_long_as_there_are_any() -> None:
    request = asked()
    assert narrowed(request, "disabled_hosts") is request
    disabled = StillCloud(traits=["COMPUTE_STATUS_DISABLED"])
    assert narrowed(request, "disabled_hosts", cloud=disabled).root_forbidden == ("COMPUTE_STATUS_DISABLED",)
