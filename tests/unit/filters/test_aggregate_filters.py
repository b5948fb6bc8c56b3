"""Test the filters that use the metadata of host aggregates."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.scheduler.builders import spec
from support.scheduler.plugin_cases import a_filter, aggregates, flavored, hosts, imaged, passing, refusal

from filters.aggregate_extra_specs import AggregateExtraSpecsFilter
from filters.aggregate_flavor_affinity import AggregateFlavorAffinityFilter
from filters.aggregate_image_properties import AggregateImagePropertiesFilter
from filters.aggregate_multi_tenancy import AggregateMultiTenancyFilter
from moorage import errors
from scheduler.decide.funnel import Funnel
from scheduler.plugins.loading import Named

Metadata = Mapping[str, Sequence[str]]


@pytest.mark.parametrize(
    ("extra_specs", "metadata", "passes"),
    [
        ({"ssd": "true"}, {"ssd": ["true"]}, True),
        ({"ssd": "true"}, {"ssd": ["false"]}, False),
        ({"ssd": "true"}, {}, False),
        # Any value of several aggregates, or of a list in one aggregate, is enough.
        ({"ssd": "true"}, {"ssd": ["false", "true"]}, True),
        ({"ssd": "<or> nvme <or> sas"}, {"ssd": ["sata, nvme"]}, True),
        ({"speed": ">= 10"}, {"speed": ["1", "25"]}, True),
        ({"speed": ">= 10"}, {"speed": ["fast"]}, False),
        ({"speed": ">= 10", "ssd": "true"}, {"speed": ["25"]}, False),
        ({"speed": "!= 10"}, {"speed": ["10"]}, False),
    ],
)
def test_each_key_of_the_flavor_needs_a_value_that_meets_it(
    extra_specs: dict[str, str], metadata: Metadata, passes: bool
) -> None:
    request = flavored(**{f"aggregate_instance_extra_specs__{key}": value for key, value in extra_specs.items()})
    assert passing(AggregateExtraSpecsFilter({}), aggregates(metadata), request) == ([0] if passes else [])


def test_the_refusal_names_the_keys_that_are_not_met() -> None:
    scope = "aggregate_instance_extra_specs__"
    request = flavored(**{f"{scope}ssd": "true", f"{scope}speed": ">= 10", f"{scope}rack": "a"})
    host = aggregates({"ssd": ["true"], "speed": ["5"]}).host(0)
    assert AggregateExtraSpecsFilter({}).why(host, request) == "is in no aggregate that meets the flavor's speed, rack"


def test_keys_of_other_scopes_and_without_a_scope_are_ignored() -> None:
    plugin = AggregateExtraSpecsFilter({})
    assert not plugin.concerns(flavored(ssd="true", capabilities__x="y"))
    assert passing(plugin, aggregates({}), flavored(ssd="true", capabilities__x="y")) == [0]


def test_an_unknown_operator_is_refused_with_its_path() -> None:
    path, reason = refusal(AggregateExtraSpecsFilter({}), flavored(aggregate_instance_extra_specs__ssd="<is> true"))
    assert path == "$.flavor.extra_specs['aggregate_instance_extra_specs:ssd']"
    assert reason.startswith("<is> is no operator")
    nameless = flavored(aggregate_instance_extra_specs__="x")
    assert "a name is missing" in refusal(AggregateExtraSpecsFilter({}), nameless)[1]


@pytest.mark.parametrize(
    ("properties", "metadata", "passes"),
    [
        ({"os_distro": "windows"}, {"os_distro": ["windows"]}, True),
        ({"os_distro": "debian"}, {"os_distro": ["windows"]}, False),
        ({"os_distro": "debian"}, {"os_distro": ["windows, debian"]}, True),
        ({"os_distro": "debian"}, {"os_distro": ["windows", "debian"]}, True),
        # A property that only the image or only the aggregate names has no effect.
        ({"os_distro": "debian"}, {}, True),
        ({}, {"os_distro": ["windows"]}, True),
        ({"os_distro": "debian", "hw_machine_type": "q35"}, {"hw_machine_type": ["pc"]}, False),
    ],
)
def test_an_aggregate_accepts_images_whose_properties_it_lists(
    properties: dict[str, str], metadata: Metadata, passes: bool
) -> None:
    plugin = AggregateImagePropertiesFilter({})
    assert passing(plugin, aggregates(metadata), imaged(**properties)) == ([0] if passes else [])


@pytest.mark.parametrize(
    ("metadata", "passes"),
    [
        ({}, True),
        ({"other": ["x"]}, True),
        ({"filter_tenant_id": ["project"]}, True),
        ({"filter_tenant_id": ["stranger"]}, False),
        ({"filter_tenant_id": ["stranger, project"]}, True),
        # A value has room for few projects: keys with any suffix count as well.
        ({"filter_tenant_id": ["stranger"], "filter_tenant_id3": ["project"]}, True),
        ({"filter_tenant_id3": ["stranger"]}, False),
        ({"filter_tenant_id": ["stranger", "project"]}, True),
    ],
)
def test_an_aggregate_for_projects_refuses_other_projects(metadata: Metadata, passes: bool) -> None:
    assert passing(AggregateMultiTenancyFilter({}), aggregates(metadata), spec()) == ([0] if passes else [])


@pytest.mark.parametrize(
    ("metadata", "passes"),
    [
        ({}, True),
        ({"instance_type": ["m1.small"]}, True),
        ({"instance_type": ["m1.large"]}, False),
        ({"instance_type": ["m1.large,m1.small"]}, True),
        ({"instance_type": ["m1.large", "m1.small"]}, True),
        ({"instance_type": ["m1"]}, False),
    ],
)
def test_an_aggregate_for_flavors_refuses_other_flavors(metadata: Metadata, passes: bool) -> None:
    request = flavored("m1.small")
    assert passing(AggregateFlavorAffinityFilter({}), aggregates(metadata), request) == ([0] if passes else [])


LIMITS = [("io_ops", "io_ops", "max_io_ops_per_host"), ("num_instances", "instances", "max_instances_per_host")]


@pytest.mark.parametrize(("name", "counted", "key"), LIMITS)
@pytest.mark.parametrize(
    ("limit", "values", "passing_hosts"),
    [
        ("3", [], [0, 1, 2]),
        ("1", [], [0]),
        # Metadata replaces the option, larger or smaller; of several values the smallest counts.
        ("1", ["3"], [0, 1, 2]),
        ("3", ["1"], [0]),
        ("3", ["2", "1"], [0]),
        ("3", ["0"], []),
    ],
)
def test_a_host_at_its_limit_is_refused(
    tmp_path: Path, name: str, counted: str, key: str, limit: str, values: list[str], passing_hosts: list[int]
) -> None:
    metadata = {key: frozenset(values)} if values else {}
    view = hosts(*({counted: number, "metadata": metadata} for number in range(4)))
    assert passing(a_filter(name, tmp_path, **{key: limit}), view, spec()) == passing_hosts


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("io_ops", "has 3 servers under way, and may have 2.5"),
        ("num_instances", "has 7 servers on it, and may have 50"),
    ],
)
def test_the_refusal_gives_the_count_and_the_limit(tmp_path: Path, name: str, why: str) -> None:
    view = hosts({"io_ops": 3, "instances": 7, "metadata": {"max_io_ops_per_host": frozenset(["2.5"])}})
    assert a_filter(name, tmp_path).why(view.host(0), spec()) == why


@pytest.mark.parametrize(("name", "most"), [("io_ops", 8), ("num_instances", 50)])
def test_the_default_limits_are_novas(tmp_path: Path, name: str, most: int) -> None:
    counted = {"io_ops": "io_ops", "num_instances": "instances"}[name]
    view = hosts({counted: most - 1}, {counted: most})
    assert passing(a_filter(name, tmp_path), view, spec()) == [0]


@pytest.mark.parametrize(("name", "counted", "key"), LIMITS)
@pytest.mark.parametrize("value", ["many", "nan", "inf", ""])
def test_an_error_names_the_key_of_a_limit_that_is_not_a_number(
    tmp_path: Path, name: str, counted: str, key: str, value: str
) -> None:
    view = hosts({}, {"metadata": {key: frozenset([value])}})
    funnel = Funnel([Named(name, a_filter(name, tmp_path))], [])
    with pytest.raises(errors.BadPluginValue) as caught:
        funnel.filter(view, spec(), np.ones(2, dtype=np.bool_))
    assert caught.value.name == name
    assert f"aggregate metadata {key} is {value!r}" in str(caught.value)
