"""Test which host attributes, as drivers report them, a flavor can require."""

from typing import Any

import pytest
from support.scheduler.plugin_cases import attributes, flavored, passing, refusal

from filters.capabilities import CapabilitiesFilter

PLUGIN = CapabilitiesFilter({})


@pytest.mark.parametrize(
    ("extra_specs", "found", "passes"),
    [
        ({}, {}, True),
        ({"capabilities__gpu": "a100"}, {"gpu": "a100"}, True),
        ({"capabilities__gpu": "a100"}, {"gpu": "t4"}, False),
        ({"capabilities__gpu": "s!= a100"}, {}, False),
        ({"capabilities__cores": ">= 8"}, {"cores": 16}, True),
        ({"capabilities__cores": "= 8"}, {"cores": "4"}, False),
        ({"capabilities__cores": ">= 8"}, {"cores": "lots"}, False),
        ({"capabilities__cores": ">= 8", "capabilities__gpu": "t4"}, {"cores": 8, "gpu": "t4"}, True),
        ({"capabilities__cores": ">= 8", "capabilities__gpu": "t4"}, {"cores": 8}, False),
        # Further colons name keys within an attribute.
        ({"capabilities__cpu_info__features": "<all-in> avx sse"}, {"cpu_info": {"features": ["sse", "avx"]}}, True),
        ({"capabilities__cpu_info__features": "<in> avx"}, {"cpu_info": {"features": ["sse"]}}, False),
        ({"capabilities__cpu_info__vendor": "Intel"}, {"cpu_info": "Intel"}, False),
        # A key without a scope is only compared on hosts that report the attribute.
        ({"ssd": "true"}, {"ssd": True}, True),
        ({"ssd": "true"}, {"ssd": False}, False),
        ({"ssd": "true"}, {}, True),
        # Keys of other scopes are ignored.
        ({"trait__HW_CPU_X86_AVX": "required", "aggregate_instance_extra_specs__x": "<is> y"}, {}, True),
        ({"hw__maxphysaddr_bits": "42"}, {"cpu_info": {"maxphysaddr": {"bits": 46}}}, True),
        ({"hw__maxphysaddr_bits": "48"}, {"cpu_info": {"maxphysaddr": {"bits": 46}}}, False),
        ({"hw__maxphysaddr_bits": "42"}, {}, False),
    ],
)
def test_a_host_must_meet_all_requirements_of_the_flavor(
    extra_specs: dict[str, str], found: dict[str, Any], passes: bool
) -> None:
    assert passing(PLUGIN, attributes(found), flavored(**extra_specs)) == ([0] if passes else [])


def test_the_refusal_names_unmet_extra_specs_with_the_hosts_values() -> None:
    view = attributes({"gpu": "t4", "cores": 4})
    request = flavored(capabilities__gpu="a100", capabilities__cores=">= 4", capabilities__ssd="true")
    assert PLUGIN.why(view.host(0), request) == (
        "does not meet the flavor's capabilities:gpu=a100, but says 't4'; capabilities:ssd=true, but says nothing"
    )


def test_the_filter_applies_only_to_flavors_that_require_capabilities() -> None:
    assert not PLUGIN.concerns(flavored())
    assert not PLUGIN.concerns(flavored(trait__HW_CPU_X86_AVX="required"))
    assert PLUGIN.concerns(flavored(capabilities__gpu="a100"))
    assert PLUGIN.concerns(flavored(ssd="true"))


@pytest.mark.parametrize(
    ("extra_specs", "path", "reason"),
    [
        ({"capabilities__gpu": "<is> a100"}, "$.flavor.extra_specs['capabilities:gpu']", "<is> is no operator"),
        ({"capabilities__ssd": ">= fast"}, "$.flavor.extra_specs['capabilities:ssd']", "'fast' is no number"),
        ({"capabilities__": "x"}, "$.flavor.extra_specs['capabilities:']", "a name is missing"),
        ({"hw__maxphysaddr_bits": "all"}, "$.flavor.extra_specs['hw:maxphysaddr_bits']", "'all' is no number"),
    ],
)
def test_an_invalid_extra_spec_is_refused_with_its_path(extra_specs: dict[str, str], path: str, reason: str) -> None:
    found, why = refusal(PLUGIN, flavored(**extra_specs))
    assert found == path
    assert why.startswith(reason)


@pytest.mark.parametrize("text", ["<b>", "= gold", ">= silver", ">=", "!!", "<or> a b"])
def test_an_extra_spec_without_a_scope_may_be_no_requirement_at_all(text: str) -> None:
    request = flavored(note=text)
    PLUGIN.check(request)
    # It is compared all the same on hosts that report the attribute.
    view = attributes({}, {"note": "b"}, {"note": text})
    assert passing(PLUGIN, view, request) == [0]
    assert PLUGIN.why(view.host(1), request) == f"does not meet the flavor's note={text}, but says 'b'"
