"""Test the multiplier of a weigher on each host: its option, or the metadata of the host's aggregates instead."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stevedore import ExtensionManager
from support.scheduler.builders import host_cache, host_row, spec

from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import Host, Weigher
from scheduler.decide.funnel import Funnel
from scheduler.plugins import loading
from scheduler.plugins.loading import Weighted
from scheduler.registry.hosts import HostRow

KEY = "number_weight_multiplier"


class ByNumber(Weigher):
    """The higher the number in a host's name, the better; records whether it was asked."""

    asked = False

    def weigh(self, host: Host, request: RequestSpec) -> float:
        self.asked = True
        return float(host.service_host.removeprefix("host"))


def with_metadata(number: int, *values: str, **more: str) -> HostRow:
    """A host whose aggregates give its multiplier these values."""
    own = {KEY: frozenset(values)} if values else {}
    return host_row(number, metadata=own | {key: frozenset({value}) for key, value in more.items()})


def weights(multiplier: float, *hosts: HostRow) -> list[float]:
    snapshot = host_cache(hosts).snapshot()
    ranking = Funnel([], [Weighted("number", ByNumber({}), multiplier)]).rank(
        snapshot, spec(), np.ones(len(snapshot), dtype=np.bool_), seed=0
    )
    return [float(weight) for weight in ranking.weights]


def test_the_hosts_of_an_aggregate_have_its_multiplier_and_the_others_the_configured_one() -> None:
    hosts = [with_metadata(0), with_metadata(1, "10"), with_metadata(2, "-3"), with_metadata(4, other_key="7")]
    assert weights(2.0, *hosts) == [0.0, 2.5, -1.5, 2.0]


def test_of_several_aggregates_the_smallest_multiplier_counts() -> None:
    assert weights(2.0, with_metadata(0), with_metadata(1, "5", "1e1", "-0.5", "05")) == [0.0, -0.5]


def test_a_disabled_weigher_is_enabled_by_an_aggregate() -> None:
    assert weights(0.0, with_metadata(0), with_metadata(1), with_metadata(2, "3")) == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    "hosts", [[with_metadata(0, "0"), with_metadata(1, "0.0")], [with_metadata(0), with_metadata(1)]]
)
def test_a_weigher_with_multiplier_zero_on_all_hosts_is_not_asked(hosts: list[HostRow]) -> None:
    weigher = ByNumber({})
    snapshot = host_cache(hosts).snapshot()
    Funnel([], [Weighted("number", weigher, 0.0)]).rank(snapshot, spec(), np.array([True, True]), seed=0)
    assert not weigher.asked


def test_a_weigher_that_is_enabled_only_for_an_infeasible_host_is_not_asked() -> None:
    weigher = ByNumber({})
    snapshot = host_cache([with_metadata(0), with_metadata(1), with_metadata(2, "3")]).snapshot()
    Funnel([], [Weighted("number", weigher, 0.0)]).rank(snapshot, spec(), np.array([True, True, False]), seed=0)
    assert not weigher.asked


@pytest.mark.parametrize("value", ["much", "", "nan", "inf", "1e308", "-2e100"])
def test_an_error_names_a_multiplier_that_is_not_a_number_and_its_weigher(value: str) -> None:
    with pytest.raises(errors.BrokenPlugin) as caught:
        weights(1.0, with_metadata(0), with_metadata(1, "1", value))
    text = str(caught.value)
    assert KEY in text
    assert repr(value) in text
    assert caught.value.name == "number"


numbers = st.integers(-4, 4).map(float)


@given(numbers, st.lists(st.lists(numbers, max_size=3), min_size=2, max_size=6))
def test_a_weight_is_the_normalised_score_times_the_hosts_own_multiplier(
    configured: float, of_hosts: list[list[float]]
) -> None:
    hosts = [with_metadata(row, *map(str, values)) for row, values in enumerate(of_hosts)]
    highest = len(hosts) - 1
    assert weights(configured, *hosts) == pytest.approx(
        [min(values, default=configured) * row / highest for row, values in enumerate(of_hosts)]
    )


def test_metadata_that_changes_is_followed_by_the_multipliers() -> None:
    shown = host_cache([with_metadata(0), with_metadata(1)])
    funnel = Funnel([], [Weighted("number", ByNumber({}), 1.0)])

    def second() -> float:
        snapshot = shown.snapshot()
        return float(funnel.rank(snapshot, spec(), np.array([True, True]), seed=0).weights[1])

    assert second() == 1.0
    shown.update(hosts=[with_metadata(1, "9")])
    assert second() == 9.0
    shown.update(hosts=[with_metadata(1)])
    assert second() == 1.0


# --- Numeric keys ---------------------------------------------------------------------------------------------------


def test_numeric_metadata_has_all_multipliers_and_the_numeric_keys_of_plugins() -> None:
    found = loading.numeric_metadata()
    assert {"ram_weight_multiplier", "cpu_weight_multiplier"} <= found
    for namespace in ("moorage.filters", "moorage.weighers"):
        for extension in ExtensionManager[Any](namespace):
            assert found.issuperset(extension.plugin.numeric_metadata)
