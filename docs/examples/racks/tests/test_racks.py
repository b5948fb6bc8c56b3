"""Each plug-in is sound, and decides what it is there for."""

import pytest
from moorage_racks.rack_filter import RackFilter
from moorage_racks.rack_power import RackPowerWeigher
from moorage_racks.rack_tier import RackTierRequestFilter

from moorage.errors import InvalidRequest
from moorage.testing import (
    Words,
    check_filter,
    check_request_filter,
    check_weigher,
    cloud,
    host,
    request,
    settings_of,
    view,
)


def test_the_filter_is_sound():
    check_filter(RackFilter, words=Words(attributes={"rack": ["r1", "r2", 3]}, hints={"rack": ["r1", "r2, r3", " , "]}))


def test_the_weigher_is_sound():
    words = Words(
        attributes={"power.rack_watts": [0, 1200.5, "2000", "much"]}, metadata={"rack_power_budget": ["500", "4000"]}
    )
    check_weigher(RackPowerWeigher, {"rack_power_budget": 3000.0}, words)


def test_the_request_filter_is_sound():
    check_request_filter(RackTierRequestFilter, words=Words(extra_specs={"rack:tier": ["gold", "silver", "tin"]}))


def test_a_hint_names_racks():
    plugin = RackFilter(settings_of(RackFilter))
    hosts = view(host(0, attributes={"rack": "r1"}), host(1, attributes={"rack": "r2"}), host(2))
    assert plugin.mask(hosts, request(hints={"rack": "r1"})).tolist() == [True, False, False]
    assert plugin.mask(hosts, request(hints={"rack": "r1,r2"})).tolist() == [True, True, False]
    assert plugin.mask(hosts, request()).all()
    assert plugin.why(hosts.host(2), request(hints={"rack": "r1"})) == "is in no rack that is known"


def test_a_rack_with_power_to_spare_is_better():
    plugin = RackPowerWeigher(settings_of(RackPowerWeigher, rack_power_budget=1000.0))
    hosts = view(host(0, attributes={"power": {"rack_watts": 900}}), host(1, metadata={"rack_power_budget": {"300"}}))
    assert plugin.scores(hosts, request()).tolist() == [100.0, 300.0]


def test_a_tier_becomes_a_trait():
    plugin = RackTierRequestFilter({})
    narrowed = plugin.narrow(request(extra_specs={"rack:tier": "gold"}), cloud())
    assert narrowed.root_required == ("CUSTOM_RACK_GOLD",)
    with pytest.raises(InvalidRequest, match="tin"):
        plugin.narrow(request(extra_specs={"rack:tier": "tin"}), cloud())
