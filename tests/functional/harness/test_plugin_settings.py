"""Test that the options of plug-ins in the settings of a cloud reach the plug-ins."""

import pytest

from harness.cloud import CloudSpec, RunningCloud, Settings
from moorage.messages import ShowPolicy

ALIASES = [
    '{"name": "gpu", "vendor_id": "10de", "product_id": "1db6"}',
    '{"name": "nic", "resource_class": "SRIOV_NET_VF"}',
]


@pytest.mark.parametrize("given", [ALIASES, ALIASES[:1], ALIASES[0]], ids=["two", "one", "text"])
def test_an_option_that_may_be_repeated_has_each_of_its_values(given: list[str] | str) -> None:
    architecture = {"image_properties_default_architecture": "x86_64"}
    settings: Settings = {"request_filters": {"pci_alias": given}, "filters": architecture}
    with RunningCloud(CloudSpec(hosts=1, settings=settings)) as cloud:
        policy = cloud.client("scheduler").call(ShowPolicy())
    found = {one.name: one.settings for one in (*policy.filters, *policy.request_filters)}
    assert found["pci"] == {"pci_alias": [given] if isinstance(given, str) else given}
    assert found["image_properties"] == architecture
