"""Test the request filters that use host aggregates: by project, by zone, and by the traits of isolated aggregates."""

from typing import Any

import pytest
from support.scheduler.worded_requests import AGGREGATES, aggregates, asked, group, narrowed

from moorage.plugin import RequestRefused

FIRST, SECOND, THIRD = AGGREGATES


@pytest.mark.parametrize(
    ("metadata", "member_of"),
    [
        ([], ()),
        ([{"filter_tenant_id": "other"}], ()),
        ([{"filter_tenant_id": "project"}], ((FIRST,),)),
        ([{"filter_tenant_id": "other"}, {"filter_tenant_id_2": "project"}], ((SECOND,),)),
        ([{"filter_tenant_id": "project"}, {}, {"filter_tenant_id": "a, project"}], ((FIRST, THIRD),)),
        ([{"tenant": "project"}], ()),
    ],
)
def test_a_project_is_restricted_to_aggregates_that_name_it(
    metadata: list[dict[str, str]], member_of: tuple[tuple[str, ...], ...]
) -> None:
    cloud = aggregates(*metadata)
    assert narrowed(asked(), "tenant_aggregate", cloud=cloud).root_member_of == member_of
    required: dict[str, Any] = {"cloud": cloud, "tenant_aggregate_required": True}
    if member_of:
        assert narrowed(asked(), "tenant_aggregate", **required).root_member_of == member_of
    else:
        with pytest.raises(RequestRefused, match="project project"):
            narrowed(asked(), "tenant_aggregate", **required)


@pytest.mark.parametrize(
    ("zone", "metadata", "member_of"),
    [
        (None, [{"availability_zone": "az1"}], ()),
        ("az1", [{"availability_zone": "az1"}, {"availability_zone": "az2"}], ((FIRST,),)),
        ("az1", [{"availability_zone": "az1"}, {"availability_zone": "az1"}], ((FIRST, SECOND),)),
        # No aggregate defines the zone: hosts may report it themselves.
        ("az3", [{"availability_zone": "az1"}], ()),
    ],
)
def test_a_zone_is_restricted_to_its_aggregates(
    zone: str | None, metadata: list[dict[str, str]], member_of: tuple[tuple[str, ...], ...]
) -> None:
    request = asked(availability_zone=zone)
    assert narrowed(request, "zone_aggregate", cloud=aggregates(*metadata)).root_member_of == member_of


WINDOWS = {"trait:CUSTOM_WINDOWS": "required"}


@pytest.mark.parametrize(
    ("changes", "metadata", "closed"),
    [
        ({}, [{"ssd": "true"}], ()),
        ({}, [WINDOWS], (FIRST,)),
        ({}, [{"trait:CUSTOM_WINDOWS": "preferred"}], ()),
        ({"extra_specs": WINDOWS}, [WINDOWS], ()),
        ({"properties": WINDOWS}, [WINDOWS], ()),
        ({"root_required": ("CUSTOM_WINDOWS",)}, [WINDOWS], ()),
        ({"groups": {"_a": group({"VGPU": 1}, required=("CUSTOM_WINDOWS",))}}, [WINDOWS], ()),
        ({"extra_specs": WINDOWS}, [{**WINDOWS, "trait:CUSTOM_SSD": "required"}, WINDOWS], (FIRST,)),
    ],
)
def test_an_aggregate_is_closed_to_requests_that_do_not_require_its_traits(
    changes: dict[str, Any], metadata: list[dict[str, str]], closed: tuple[str, ...]
) -> None:
    filters = ("extra_specs", "image_traits", "isolated_aggregates")
    assert narrowed(asked(**changes), *filters, cloud=aggregates(*metadata)).root_not_member_of == closed
