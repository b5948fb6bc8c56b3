"""Test the filters that use the configuration: isolated hosts, and required metrics."""

from pathlib import Path
from typing import Any

import pytest
from support.scheduler.builders import spec
from support.scheduler.plugin_cases import a_filter, attributes, hosts, imaged, passing

from moorage import errors


@pytest.mark.parametrize(
    ("images", "isolated", "restrict", "image", "left"),
    [
        # Isolated images go to isolated hosts, other images to the others.
        ("secret", "host0", "true", "secret", [0]),
        ("secret", "host0", "true", "plain", [1, 2]),
        ("secret", "host0", "true", None, [1, 2]),
        # Other images may go to isolated hosts, too.
        ("secret", "host0", "false", "secret", [0]),
        ("secret", "host0", "false", "plain", [0, 1, 2]),
        # Only images, or only hosts, are configured.
        ("secret", "", "true", "secret", []),
        ("secret", "", "true", "plain", [0, 1, 2]),
        ("", "host0", "true", "plain", [1, 2]),
        ("", "host0", "false", "plain", [0, 1, 2]),
        ("", "", "true", "plain", [0, 1, 2]),
        ("other,secret", "HOST0,host2,nowhere", "true", "secret", [0, 2]),
    ],
)
def test_isolated_images_and_hosts_are_kept_apart_from_others(
    tmp_path: Path, images: str, isolated: str, restrict: str, image: str | None, left: list[int]
) -> None:
    plugin = a_filter(
        "isolated_hosts",
        tmp_path,
        isolated_images=images,
        isolated_hosts=isolated,
        restrict_isolated_hosts_to_isolated_images=restrict,
    )
    assert passing(plugin, hosts({}, {}, {}), imaged(image)) == left


@pytest.mark.parametrize(
    ("metrics", "passes"),
    [
        ({"cpu.percent": 12, "pressure": 0.5}, True),
        ({"cpu.percent": 0, "pressure": "0.5", "more": "x"}, True),
        ({"cpu.percent": 12}, False),
        ({"cpu.percent": 12, "pressure": "high"}, False),
        ({"cpu.percent": 12, "pressure": None}, False),
        (None, False),
        ("none", False),
    ],
)
def test_a_host_must_report_every_required_metric(tmp_path: Path, metrics: Any, passes: bool) -> None:
    plugin = a_filter("metrics", tmp_path, required_metrics="cpu.percent,pressure")
    view = attributes({} if metrics is None else {"metrics": metrics})
    assert passing(plugin, view, spec()) == ([0] if passes else [])


def test_all_hosts_pass_if_no_metrics_are_required(tmp_path: Path) -> None:
    plugin = a_filter("metrics", tmp_path)
    assert not plugin.concerns(spec())
    assert passing(plugin, attributes({}), spec()) == [0]


def test_a_list_of_metrics_with_a_gap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="required_metrics has two commas"):
        a_filter("metrics", tmp_path, required_metrics="cpu.percent,,pressure")
