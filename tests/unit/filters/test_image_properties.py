"""Test which host properties an image can require: architecture, hypervisor, kind of virtual machine, versions."""

from pathlib import Path
from typing import Any

import pytest
from support.scheduler.plugin_cases import a_filter, attributes, imaged, passing, refusal

from filters.image_properties import ImagePropertiesFilter

PLUGIN = ImagePropertiesFilter({})
KVM = {"supported_instances": [["x86_64", "kvm", "hvm"], ["i686", "qemu", "hvm"]]}


@pytest.mark.parametrize(
    ("properties", "found", "passes"),
    [
        # An image without requirements runs anywhere.
        ({}, {}, True),
        ({"os_distro": "debian"}, {}, True),
        ({"hw_architecture": "x86_64"}, KVM, True),
        ({"hw_architecture": "aarch64"}, KVM, False),
        ({"img_hv_type": "kvm"}, KVM, True),
        ({"img_hv_type": "xen"}, KVM, False),
        ({"hw_vm_mode": "hvm"}, KVM, True),
        ({"hw_vm_mode": "exe"}, KVM, False),
        # One combination of the host must meet all requirements.
        ({"hw_architecture": "i686", "img_hv_type": "qemu", "hw_vm_mode": "hvm"}, KVM, True),
        ({"hw_architecture": "i686", "img_hv_type": "kvm"}, KVM, False),
        # A requirement is only compared with its own part of a combination.
        ({"hw_architecture": "kvm"}, KVM, False),
        # Older names of properties, and synonyms of values.
        ({"architecture": "amd64", "hypervisor_type": "KVM", "vm_mode": "HVM"}, KVM, True),
        ({"architecture": "i386"}, KVM, True),
        ({"hw_architecture": "x86_64", "architecture": "aarch64"}, KVM, True),
        ({"vm_mode": "pv"}, {"supported_instances": [["x86_64", "xen", "xen"]]}, True),
        # A host that does not report what it supports meets no requirement.
        ({"hw_architecture": "x86_64"}, {}, False),
        ({"hw_architecture": "x86_64"}, {"supported_instances": []}, False),
        ({"hw_architecture": "x86_64"}, {"supported_instances": "x86_64"}, False),
        ({"hw_architecture": "x86_64"}, {"supported_instances": [["x86_64"], "x86_64"]}, False),
        # Versions, as numbers and as texts.
        ({"img_hv_requested_version": ">=6.0, <6.2"}, {"hypervisor_version": 6001002}, True),
        ({"img_hv_requested_version": ">=6.0, <6.2"}, {"hypervisor_version": 6002000}, False),
        ({"img_hv_requested_version": ">=6.0, <6.2"}, {"hypervisor_version": "6.1.2"}, True),
        ({"hypervisor_version_requires": "!=6.1.2"}, {"hypervisor_version": 6001002}, False),
        ({"img_hv_requested_version": ">=6.0"}, {"hypervisor_version": "newest"}, False),
        ({"img_hv_requested_version": ">=6.0"}, {"hypervisor_version": -1}, False),
        ({"img_hv_requested_version": ">=6.0"}, {"hypervisor_version": 0}, False),
        ({"img_hv_requested_version": ">=6.0"}, {}, False),
        ({"hw_maxphysaddr_bits": "42"}, {"cpu_info": {"maxphysaddr": {"bits": 46}}}, True),
        ({"hw_maxphysaddr_bits": "48"}, {"cpu_info": {"maxphysaddr": {"bits": 46}}}, False),
        ({"hw_maxphysaddr_bits": "42"}, {"cpu_info": {}}, False),
    ],
)
def test_a_host_passes_if_it_supports_what_the_image_requires(
    properties: dict[str, str], found: dict[str, Any], passes: bool
) -> None:
    assert passing(PLUGIN, attributes(found), imaged(**properties)) == ([0] if passes else [])


def test_the_default_architecture_applies_to_images_without_one(tmp_path: Path) -> None:
    plugin = a_filter("image_properties", tmp_path, image_properties_default_architecture="x86_64")
    view = attributes(KVM, {"supported_instances": [["aarch64", "kvm", "hvm"]]}, {})
    assert plugin.concerns(imaged())
    assert passing(plugin, view, imaged()) == [0]
    assert passing(plugin, view, imaged(hw_architecture="aarch64")) == [1]


@pytest.mark.parametrize(
    ("properties", "path", "reason"),
    [
        ({"img_hv_requested_version": "recent"}, "img_hv_requested_version", "'recent' is no requirement of versions"),
        ({"hypervisor_version_requires": ">=x"}, "hypervisor_version_requires", "'>=x' is no requirement of versions"),
        ({"hw_maxphysaddr_bits": "all"}, "hw_maxphysaddr_bits", "'all' is no number"),
    ],
)
def test_an_invalid_property_is_refused_with_its_path(properties: dict[str, str], path: str, reason: str) -> None:
    found, why = refusal(PLUGIN, imaged(**properties))
    assert found == f"$.image.properties.{path}"
    assert why.startswith(reason)


def test_the_refusal_gives_the_drivers_values_for_unmet_requirements() -> None:
    view = attributes({**KVM, "hypervisor_version": 6001002})
    needed = imaged(hw_architecture="x86_64", img_hv_requested_version=">=7.0", hw_maxphysaddr_bits="46")
    assert PLUGIN.why(view.host(0), needed) == (
        "does not support what the image needs: its hypervisor_version is 6001002, "
        "its cpu_info.maxphysaddr.bits is None"
    )
