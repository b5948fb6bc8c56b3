"""Test the inventory and allocation arguments: the syntax of osc-placement, and a one-sentence error otherwise."""

import argparse

import pytest

from moorage import errors
from moorage.model import Inventory
from placement_store.commands import argument_types
from placement_store.commands.argument_types import Setting, TypedAllocation
from placement_store.commands.inventories import amended


def test_a_setting_is_a_total_or_names_another_field() -> None:
    assert argument_types.setting("VCPU=16") == Setting("VCPU", "total", 16)
    assert argument_types.setting("VCPU:max_unit=4") == Setting("VCPU", "max_unit", 4)
    assert argument_types.setting("VCPU:allocation_ratio=1.5") == Setting("VCPU", "allocation_ratio", 1.5)
    assert argument_types.setting("VCPU:reserved=0") == Setting("VCPU", "reserved", 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("VCPU=", "'VCPU=' is not CLASS=TOTAL or CLASS:FIELD=VALUE"),
        ("VCPU", "'VCPU' is not CLASS=TOTAL"),
        ("=4", "'' is no resource class"),
        ("vcpu=4", "'vcpu' is no resource class"),
        ("VCPU=four", "total of 'four': it takes a whole number"),
        ("VCPU=0", "total of '0': it takes"),
        ("VCPU=1.5", "total of '1.5': it takes"),
        ("VCPU:allocation_ratio=0", "it takes a number more than 0"),
        ("VCPU:allocation_ratio=nan", "it takes a number more than 0"),
        ("VCPU:used=1", "an inventory has no 'used': its fields are allocation_ratio, min_unit"),
        ("VCPU:=1", "an inventory has no ''"),
    ],
)
def test_an_invalid_setting_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        argument_types.setting(text)
    assert reason in str(refusal.value)


def test_an_allocation_names_a_provider_and_amounts() -> None:
    assert argument_types.allocation("rp=host1,VCPU=2,MEMORY_MB=512") == TypedAllocation(
        "host1", {"VCPU": 2, "MEMORY_MB": 512}
    )
    assert argument_types.allocation("VCPU=2,rp=host1") == TypedAllocation("host1", {"VCPU": 2})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rp=host1", "'rp=host1' is not rp=PROVIDER,CLASS=AMOUNT"),
        ("VCPU=2", "'VCPU=2' is not rp=PROVIDER,CLASS=AMOUNT"),
        ("rp=,VCPU=2", "is not rp=PROVIDER,CLASS=AMOUNT"),
        ("rp=host1,VCPU=", "'VCPU=' is not CLASS=AMOUNT, with an amount of 1 or more"),
        ("rp=host1,VCPU=0", "'VCPU=0' is not CLASS=AMOUNT, with an amount of 1 or more"),
        ("rp=host1,VCPU=1,VCPU=2", "has VCPU twice"),
        ("rp=host1,rp=host2,VCPU=1", "has rp twice"),
        ("rp=host1,", "'' is not CLASS=AMOUNT"),
    ],
)
def test_an_invalid_allocation_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        argument_types.allocation(text)
    assert reason in str(refusal.value)


def test_amending_changes_only_the_named_fields() -> None:
    before = {"VCPU": Inventory(total=8, reserved=1), "DISK_GB": Inventory(total=100)}
    after = amended(
        before, [Setting("VCPU", "total", 16), Setting("CUSTOM_A", "max_unit", 2), argument_types.setting("CUSTOM_A=4")]
    )
    assert after == {
        "VCPU": Inventory(total=16, reserved=1),
        "DISK_GB": Inventory(total=100),
        "CUSTOM_A": Inventory(total=4, max_unit=2),
    }


def test_a_new_class_without_a_total_is_refused() -> None:
    with pytest.raises(errors.InvalidRequest, match="the total of VCPU is missing"):
        amended({}, [Setting("VCPU", "max_unit", 4)])
