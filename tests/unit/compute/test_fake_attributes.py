"""Test the options that set attributes of fake hosts for filters and weighers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compute.builders import settings

from compute.fake.attributes import FakeAttributes
from compute.fake.driver import FakeDriver
from moorage import errors


def attributes_of(folder: Path, **chosen: Any) -> dict[str, dict[str, Any]]:
    driver = FakeDriver(settings(folder, fake_driver=chosen), "agent1", "cell1")
    return {host.service_host: host.attributes for host in driver.hosts()}


def test_fake_hosts_have_no_attributes_by_default(tmp_path: Path) -> None:
    assert attributes_of(tmp_path) == {"host-0001": {}, "host-0002": {}, "host-0003": {}}


def test_attributes_of_all_hosts_and_of_one_host_are_merged(tmp_path: Path) -> None:
    found = attributes_of(
        tmp_path, attributes=['{"rack": "a", "cpu_info": {"bits": 46}}', 'host-0002: {"rack": "b", "gpu": "a100"}']
    )

    assert found["host-0001"] == found["host-0003"] == {"rack": "a", "cpu_info": {"bits": 46}}
    assert found["host-0002"] == {"rack": "b", "cpu_info": {"bits": 46}, "gpu": "a100"}


def test_a_later_value_replaces_an_earlier_one(tmp_path: Path) -> None:
    assert attributes_of(tmp_path, attributes=['{"rack": 1}', '{"rack": 2}'])["host-0001"] == {"rack": 2}


def test_a_value_may_contain_colons_and_braces(tmp_path: Path) -> None:
    found = attributes_of(tmp_path, attributes=['{"host_ip": "fd00::1", "odd": "{:"}'])

    assert found["host-0003"] == {"host_ip": "fd00::1", "odd": "{:"}


def test_a_metric_is_equal_on_all_hosts_or_drawn_for_each_within_its_bounds(tmp_path: Path) -> None:
    chosen = ["io.pressure=0.5", "cpu.percent = -20..80"]
    found = [host["metrics"] for host in attributes_of(tmp_path, hosts=50, metrics=chosen).values()]

    assert {metrics["io.pressure"] for metrics in found} == {0.5}
    assert all(-20 <= metrics["cpu.percent"] <= 80 for metrics in found)
    assert len({metrics["cpu.percent"] for metrics in found}) > 10


def test_drawn_metrics_depend_only_on_the_seed(tmp_path: Path) -> None:
    first, again, other = (attributes_of(tmp_path, metrics=["cpu.percent=0..100"], seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_host_may_have_metrics_of_its_own_or_none(tmp_path: Path) -> None:
    own = ['host-0001: {"metrics": {"cpu.percent": 99}}', 'host-0002: {"metrics": null}']
    found = attributes_of(tmp_path, metrics=["cpu.percent=10"], attributes=own)

    assert [host["metrics"] for host in found.values()] == [{"cpu.percent": 99}, None, {"cpu.percent": 10.0}]


@given(seed=st.integers(), host=st.text(max_size=20), low=st.floats(-1e6, 1e6), width=st.floats(0, 1e6))
def test_a_drawn_metric_is_within_its_bounds(seed: int, host: str, low: float, width: float) -> None:
    high = low + width
    # Only the values of the options: a whole configuration for each example would take seconds.
    options: Any = SimpleNamespace(metrics=[f"m={low}..{high}"], seed=seed, attributes=[])

    assert low <= FakeAttributes(options).of(host)["metrics"]["m"] <= high


@pytest.mark.parametrize(
    "text",
    [
        "rack=a",
        "[1]",
        "{",
        '{"rack": NaN}',
        '{"": 1}',
        'host-0001 {"rack": 1}',
        ': {"rack": 1}',
        'host-0001: a {"rack": 1}',
        "host-0001:",
        '{"rack": 1} and more',
    ],
)
def test_an_error_names_attributes_that_are_not_a_json_object(tmp_path: Path, text: str) -> None:
    with pytest.raises(errors.ConfigurationError) as refused:
        attributes_of(tmp_path, attributes=['{"fine": true}', text])

    assert f"[fake_driver] attributes {text!r}: " in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "host-0002: cpu.percent=20",
        "cpu percent=20",
        "cpu",
        "cpu=",
        "=1",
        "cpu=much",
        "cpu=nan",
        "cpu=inf",
        "cpu=5..1",
        "cpu=1..",
        "cpu=..1",
    ],
)
def test_an_error_names_metrics_that_are_not_numbers(tmp_path: Path, text: str) -> None:
    with pytest.raises(errors.ConfigurationError) as refused:
        attributes_of(tmp_path, metrics=[text])

    assert f"[fake_driver] metrics {text!r}: it is NAME=NUMBER or NAME=SMALLEST..LARGEST" in str(refused.value)
