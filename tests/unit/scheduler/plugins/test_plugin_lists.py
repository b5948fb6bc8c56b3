"""Test that a list of plug-ins is written in full, or as changes of the default."""

import re
from pathlib import Path

import pytest
from support.moorage.configuration import from_text

from moorage import errors
from moorage.config import options
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.plugins.lists import enabled
from scheduler.policy import SchedulingPolicy

RACKS = Path(__file__).parents[4] / "docs/examples/racks/README.md"
LISTS = ("enabled_filters", "enabled_weighers", "enabled_request_filters")
DEFAULT = {name: list(options.new().scheduler[name]) for name in LISTS}


def enabled_by(tmp_path: Path, text: str) -> dict[str, list[str]]:
    conf = from_text(tmp_path, f"[scheduler]\n{text}\n")
    return {name: enabled(conf, name) for name in LISTS}


def policy(tmp_path: Path, text: str) -> SchedulingPolicy:
    return SchedulingPolicy.load(from_text(tmp_path, text), FailureCounts())


def test_plain_names_are_all_that_is_enabled(tmp_path: Path) -> None:
    assert enabled_by(tmp_path, "enabled_weighers = disk, ram")["enabled_weighers"] == ["disk", "ram"]
    assert enabled_by(tmp_path, "enabled_weighers =")["enabled_weighers"] == []


def test_signed_names_change_the_default(tmp_path: Path) -> None:
    found = enabled_by(tmp_path, "enabled_weighers = +io_ops, -ram,+packing\nenabled_filters = -resources")
    assert found == {
        "enabled_weighers": [*(name for name in DEFAULT["enabled_weighers"] if name != "ram"), "io_ops", "packing"],
        "enabled_filters": DEFAULT["enabled_filters"][:-1],
        "enabled_request_filters": DEFAULT["enabled_request_filters"],
    }
    assert DEFAULT["enabled_filters"][-1] == "resources"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("+io_ops, cpu", r"mixes names with and without a sign \(cpu\)"),
        ("+", "has a sign without a name"),
        ("+io_ops,, -ram", "has two commas without a name between them"),
        ("ram,,cpu", "has two commas without a name between them"),
        ("-packing", "removes packing, which is not enabled by default: ram, cpu"),
        ("+ram", "adds ram, which is enabled by default"),
        ("+io_ops, +io_ops", "names one twice"),
        ("-ram, -ram", "names one twice"),
        ("-ram, +ram", "adds ram, which is enabled by default"),
    ],
)
def test_an_invalid_list_is_refused_with_a_reason(tmp_path: Path, written: str, reason: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=rf"\[scheduler\] enabled_weighers {reason}"):
        enabled_by(tmp_path, f"enabled_weighers = {written}")


def test_an_unknown_name_with_a_sign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnknownPlugin, match="no filter named phase_of_the_moon"):
        policy(tmp_path, "[scheduler]\nenabled_filters = +phase_of_the_moon\n")


def test_a_policy_shows_the_resulting_list(tmp_path: Path) -> None:
    described = policy(tmp_path, "[scheduler]\nenabled_weighers = -ram, +io_ops\n").described
    shown = [use.name for use in described.weighers]
    assert shown == [*(name for name in DEFAULT["enabled_weighers"] if name != "ram"), "io_ops"]


def test_an_unknown_option_of_plugins_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="perhaps you mean ram_weight_multiplier"):
        policy(tmp_path, "[weighers]\nram_weight_multiplyer = 2\n")


def test_the_lines_that_the_sample_package_recommends_keep_every_default(tmp_path: Path) -> None:
    lines = [line.strip() for line in RACKS.read_text().splitlines() if re.match(r" {4}enabled_", line)]
    found = enabled_by(tmp_path, "\n".join(lines))
    assert found == {
        name: [*DEFAULT[name], plugin] for name, plugin in zip(LISTS, ["rack", "rack_power", "rack_tier"], strict=True)
    }
