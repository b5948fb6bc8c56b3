"""Test the filters that use the hints of a request."""

import pytest
from support.scheduler.builders import host_row
from support.scheduler.plugin_cases import attributes, hinted, hosts, passing, refusal

from filters.cidr_affinity import CidrAffinityFilter
from filters.different_host import DifferentHostFilter
from filters.same_host import SameHostFilter
from moorage.ids import derived
from moorage.plugin import Filter

ONE, OTHER, NOWHERE = (derived("tests", "instance", number) for number in range(3))
#: Host 0 has instance ONE, host 1 has OTHER, host 2 has none.
PLACED = hosts({}, {}, {}).with_neighbours(
    {host_row(0).compute_node_uuid: {ONE}, host_row(1).compute_node_uuid: {OTHER}}
)


@pytest.mark.parametrize(
    ("hint", "same", "different"),
    [
        (ONE, [0], [1, 2]),
        (f"{ONE},{OTHER}", [0, 1], [2]),
        (f" {ONE} , {NOWHERE}", [0], [1, 2]),
        (f'["{ONE}", "{OTHER}"]', [0, 1], [2]),
        (ONE.upper(), [0], [1, 2]),
        (NOWHERE, [], [0, 1, 2]),
        # An empty list has no effect.
        ("", [0, 1, 2], [0, 1, 2]),
        ("[]", [0, 1, 2], [0, 1, 2]),
    ],
)
def test_a_server_is_placed_on_the_same_or_on_different_hosts_than_others(
    hint: str, same: list[int], different: list[int]
) -> None:
    assert passing(SameHostFilter({}), PLACED, hinted(same_host=hint)) == same
    assert passing(DifferentHostFilter({}), PLACED, hinted(different_host=hint)) == different


@pytest.mark.parametrize("plugin", [SameHostFilter({}), DifferentHostFilter({}), CidrAffinityFilter({})])
def test_a_filter_does_not_apply_without_its_hint(plugin: Filter) -> None:
    assert not plugin.concerns(hinted(group="x"))
    assert passing(plugin, PLACED, hinted(group="x")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ("host7", "'host7' is not a uuid"),
        (f"{ONE};{OTHER}", f"'{ONE};{OTHER[:60]}"[:40]),
        ('["x"]', "'x' is not a uuid"),
        ("[1]", "it is no JSON list of texts"),
        (f'["{ONE}"', "it is no JSON list of texts"),
        ("[" * 4000, "it is no JSON list of texts"),
    ],
)
def test_a_hint_that_is_not_a_list_of_uuids_is_refused(hint: str, reason: str) -> None:
    path, why = refusal(SameHostFilter({}), hinted(same_host=hint))
    assert path == "$.scheduler_hints.same_host"
    assert why.startswith(reason)
    assert refusal(DifferentHostFilter({}), hinted(different_host=hint)) == ("$.scheduler_hints.different_host", why)


ADDRESSES = ["10.0.0.5", "10.0.0.200", "10.0.1.5", "2001:db8::5", "2001:db8:1::5", "garbage", None, 167772165]


@pytest.mark.parametrize(
    ("near", "cidr", "left"),
    [
        ("10.0.0.1", None, [0, 1]),
        ("10.0.0.1", "/16", [0, 1, 2]),
        ("10.0.0.1", "16", [0, 1, 2]),
        ("10.0.0.1", "/25", [0]),
        ("10.0.0.5", "/32", [0]),
        ("10.0.0.1", "/0", [0, 1, 2]),
        ("192.168.0.1", None, []),
        ("2001:db8::1", None, [3]),
        ("2001:db8::1", "/32", [3, 4]),
        ("", None, list(range(8))),
    ],
)
def test_hosts_in_the_network_around_an_address_pass(near: str, cidr: str | None, left: list[int]) -> None:
    view = attributes(*({} if address is None else {"host_ip": address} for address in ADDRESSES))
    hints = {"build_near_host_ip": near} | ({} if cidr is None else {"cidr": cidr})
    assert passing(CidrAffinityFilter({}), view, hinted(**hints)) == left


@pytest.mark.parametrize(
    ("hints", "path", "reason"),
    [
        ({"build_near_host_ip": "near"}, "build_near_host_ip", "'near' is no IP address"),
        ({"build_near_host_ip": "10.0.0.0/24"}, "build_near_host_ip", "'10.0.0.0/24' is no IP address"),
        ({"build_near_host_ip": "10.0.0.1", "cidr": "/33"}, "cidr", "'/33' is no prefix length"),
        ({"build_near_host_ip": "10.0.0.1", "cidr": "wide"}, "cidr", "'wide' is no prefix length"),
        ({"build_near_host_ip": "10.0.0.1", "cidr": "/-1"}, "cidr", "'/-1' is no prefix length"),
        ({"build_near_host_ip": "2001:db8::1", "cidr": "/129"}, "cidr", "'/129' is no prefix length"),
        ({"cidr": "/24"}, "cidr", "it needs build_near_host_ip, which is missing"),
    ],
)
def test_an_invalid_network_is_refused(hints: dict[str, str], path: str, reason: str) -> None:
    found, why = refusal(CidrAffinityFilter({}), hinted(**hints))
    assert found == f"$.scheduler_hints.{path}"
    assert why.startswith(reason)
