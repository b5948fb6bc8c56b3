"""Why a host is refused for its traits is said with their names."""

import pytest

from filters.traits import TraitsFilter
from moorage.model import ResourceGroup
from moorage.testing import host, request

PLUGIN = TraitsFilter({})
HERE = host(traits=frozenset({"CUSTOM_A", "CUSTOM_ROOT"}), root_traits=frozenset({"CUSTOM_ROOT"}))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"root_required": ("CUSTOM_ROOT", "CUSTOM_A")}, "has not CUSTOM_A on its root"),
        ({"root_forbidden": ("CUSTOM_ROOT", "CUSTOM_A")}, "has CUSTOM_ROOT on its root, which it must not"),
        ({"groups": {"": ResourceGroup(required=("CUSTOM_A", "CUSTOM_B"))}}, "has not CUSTOM_B"),
        ({"groups": {"_G": ResourceGroup(any_of=(("CUSTOM_B", "CUSTOM_C"),))}}, "has none of CUSTOM_B, CUSTOM_C"),
        ({"groups": {"": ResourceGroup(forbidden=("CUSTOM_A",))}}, "has CUSTOM_A, which it must not"),
        (
            {"groups": {"": ResourceGroup(required=("CUSTOM_B",)), "_G": ResourceGroup(required=("CUSTOM_B",))}},
            "has not CUSTOM_B",
        ),
        (
            {"root_required": ("CUSTOM_B",), "groups": {"": ResourceGroup(required=("CUSTOM_C",))}},
            "has not CUSTOM_B on its root; has not CUSTOM_C",
        ),
    ],
)
def test_a_host_is_told_which_traits_it_lacks_or_has_too_many(asked: dict[str, object], why: str) -> None:
    asking = request(**asked)

    assert not PLUGIN.passes(HERE, asking)
    assert PLUGIN.why(HERE, asking) == why
