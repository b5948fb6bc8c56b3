"""Why a host is refused for the aggregates or the tree that it is in is said by their uuids."""

import pytest

from filters.aggregates import AggregatesFilter
from moorage.ids import derived
from moorage.model import ResourceGroup
from moorage.testing import host, request

PLUGIN = AggregatesFilter({})
ROOT, POOL, OTHER, MORE = (derived("tests", "aggregate", number) for number in range(4))
HERE = host(aggregates=frozenset({ROOT, POOL}), root_aggregates=frozenset({ROOT}))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"root_member_of": ((ROOT, OTHER), (OTHER,))}, f"is not in aggregate {OTHER}"),
        ({"root_member_of": ((OTHER, MORE),)}, f"is in none of the aggregates {OTHER}, {MORE}"),
        ({"root_not_member_of": (ROOT, OTHER)}, f"is in aggregate {ROOT}, where it must not be"),
        ({"groups": {"": ResourceGroup(member_of=((POOL,), (MORE,)))}}, f"is not in aggregate {MORE}"),
        ({"groups": {"": ResourceGroup(not_member_of=(POOL,))}}, f"is in aggregate {POOL}, where it must not be"),
        ({"groups": {"": ResourceGroup(in_tree=OTHER)}}, f"has no provider {OTHER}"),
    ],
)
def test_a_host_is_told_in_which_aggregates_or_tree_it_is_not_or_must_not_be(
    asked: dict[str, object], why: str
) -> None:
    asking = request(**asked)

    assert not PLUGIN.passes(HERE, asking)
    assert PLUGIN.why(HERE, asking) == why
