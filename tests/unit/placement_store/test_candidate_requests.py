"""Test which requests for candidates are invalid, whatever providers there are."""

from typing import Any

import pytest

from moorage import errors
from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates import check

ONE = ResourceGroup(resources={"VGPU": 1})
NOTHING = ResourceGroup()


def request(groups: dict[str, ResourceGroup], **more: Any) -> ResourceRequest:
    return ResourceRequest(groups=groups, **more)


INVALID = [
    (request({}), "$.groups", "no group asks for any resources"),
    (request({"_1": NOTHING}, same_subtree=(("_1",),)), "$.groups", "no group asks for any resources"),
    (request({"_1": ONE, "_2": ONE}), "$.group_policy", "must be said where there is more than one suffixed group"),
    (request({"": ONE}, same_subtree=(("_1",),)), "$.same_subtree[0]", "there is no group '_1'"),
    (request({"": ONE, "_1": ONE}, same_subtree=(("_1",), ("", "_1"))), "$.same_subtree[1]", "unsuffixed group"),
    (request({"": ONE, "_1": NOTHING}), "$.groups['_1'].resources", "must be named in same_subtree"),
    (request({"": NOTHING, "_1": ONE}), "$.groups[''].resources", "must be named in same_subtree"),
    (
        request({"": ResourceGroup(resources={"VGPU": 1}, required=("A", "B"), forbidden=("B",))}),
        "$.groups[''].forbidden",
        "B is required as well",
    ),
    (
        request({"": ResourceGroup(resources={"VGPU": 1}, any_of=(("A", "C"), ("A", "B")), forbidden=("A", "B"))}),
        "$.groups[''].any_of[1]",
        "all of these traits are forbidden",
    ),
    (request({"": ONE}, root_required=("A",), root_forbidden=("A",)), "$.root_forbidden", "A is required as well"),
]


@pytest.mark.parametrize(("asked", "path", "reason"), INVALID)
def test_an_inconsistent_or_incomplete_request_is_refused(asked: ResourceRequest, path: str, reason: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        check(asked)
    assert caught.value.path == path
    assert reason in caught.value.reason


VALID = [
    request({"": ONE}),
    request({"_1": ONE}),
    request({"": ONE, "_1": ONE}),
    request({"_1": ONE, "_2": NOTHING}, group_policy="isolate", same_subtree=(("_1", "_2"),)),
    request({"": ResourceGroup(resources={"VGPU": 1}, any_of=(("A", "B"),), forbidden=("A",))}),
]


@pytest.mark.parametrize("asked", VALID)
def test_a_consistent_and_complete_request_is_accepted(asked: ResourceRequest) -> None:
    check(asked)
