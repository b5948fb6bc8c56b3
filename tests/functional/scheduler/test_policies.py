"""Test that the policy of a scheduler is shown, and that a reload replaces it as a whole or not at all."""

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scheduler.builders import select, spec
from support.scheduler.operator import Operator, report_scheduler
from support.scheduler.rig import Rig

from moorage import errors, ids, metrics
from moorage.bus.bus import Bus
from moorage.cli.shell import main
from moorage.config import options
from moorage.messages import ExplainRequest, ShowPolicy
from moorage.model import Explanation
from scheduler.service import SchedulerService

#: Two policies that differ in each part.
ONE = {
    "scheduler": {"enabled_filters": "compute,resources", "enabled_weighers": "ram,cpu", "host_subset_size": "1"},
    "weighers": {"ram_weight_multiplier": "2.0"},
}
OTHER = {
    "scheduler": {
        "enabled_filters": "destination,availability_zone,resources",
        "enabled_weighers": "disk",
        "enabled_request_filters": "extra_specs",
        "host_subset_size": "3",
    },
    "filters": {"image_properties_default_architecture": "x86_64"},
    "weighers": {"disk_weight_multiplier": "-1.0"},
}
Settings = dict[str, dict[str, str]]


class Configured:
    """A store with three hosts, and schedulers, each with its own configuration file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self.rig.add_hosts([1, 2, 3])
        self._transport_url = f"inproc://{ids.fresh()}/"
        self.services: list[SchedulerService] = []
        self.write("one", ONE)
        self.bus = Bus(options.new(files=[self.file("one")]))

    def close(self) -> None:
        for service in self.services:
            service.stop()
        self.bus.close()
        self.rig.close()

    def file(self, name: str) -> Path:
        return self._folder / f"{name}.conf"

    def write(self, name: str, settings: Settings) -> None:
        common = {"DEFAULT": {"transport_url": self._transport_url}, "database": {"connection": self.rig.url}}
        groups = {**common, **settings}
        lines = [line for group, values in groups.items() for line in (f"[{group}]", *_lines(values))]
        self.file(name).write_text("\n".join(lines))

    def start(self, name: str = "one") -> SchedulerService:
        service = SchedulerService(options.new(files=[self.file(name)]), name)
        self.services.append(service)
        service.start()
        return service

    def policy(self, name: str = "one") -> Any:
        return self.bus.client("scheduler", name, timeout=60.0).call(ShowPolicy())

    def explains(self) -> Explanation:
        return self.bus.client("scheduler", "one", timeout=60.0).call(ExplainRequest(request_spec=spec()))


def _lines(values: dict[str, str]) -> list[str]:
    return [f"{name} = {value}" for name, value in values.items()]


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Configured]:
    configured = Configured(tmp_path)
    yield configured
    configured.close()


def plugins_of(explanation: Explanation) -> tuple[Any, ...]:
    """Return the filters and the weighers with multipliers of a decision, from its explanation."""
    scores = explanation.top_hosts[0].scores
    return [each.name for each in explanation.filters], [(each.weigher, each.multiplier) for each in scores]


BY_ONE = (["compute", "resources"], [("ram", 2.0), ("cpu", 1.0)])
BY_OTHER = (["destination", "availability_zone", "resources"], [("disk", -1.0)])


def test_a_policy_is_shown_with_its_plugins_in_order_and_their_options(configured: Configured) -> None:
    configured.write("one", {**ONE, "scheduler": {**ONE["scheduler"], "enabled_filters": "resources,io_ops,compute"}})
    configured.start()
    policy = configured.policy()
    assert [each.name for each in policy.filters] == ["resources", "io_ops", "compute"]
    assert policy.filters[1].settings == {"max_io_ops_per_host": 8}
    assert policy.filters[1].source == "filters.io_ops:IoOpsFilter"
    assert [(each.name, each.multiplier) for each in policy.weighers] == [("ram", 2.0), ("cpu", 1.0)]
    assert policy.host_subset_size == 1
    assert (policy.refused, policy.needs_restart) == (None, ())


def test_each_decision_uses_one_policy_although_policies_are_reloaded_meanwhile(configured: Configured) -> None:
    service, ended = configured.start(), threading.Event()
    seen: list[tuple[Any, ...]] = []

    def decide() -> None:
        while not ended.is_set():
            seen.append(plugins_of(configured.explains()))

    threads = [threading.Thread(target=decide) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(8):
            before = len(seen)
            configured.write("one", OTHER if turn % 2 == 0 else ONE)
            service.reload()
            # Each decision that begins after the reload uses the new policy.
            assert plugins_of(configured.explains()) == (BY_OTHER if turn % 2 == 0 else BY_ONE)
            assert len(seen) >= before
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert configured.policy().refused is None
    assert not [each for each in seen if each not in (BY_ONE, BY_OTHER)]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"scheduler": {"enabled_filters": "compute,moonshine"}}, "no filter named moonshine.*needs a restart"),
        ({"scheduler": {"enabled_weighers": "ram,ram"}}, "enabled twice"),
        ({"scheduler": {"host_subset_size": "0"}}, "host_subset_size"),
        ({"weighers": {"ram_weight_multiplier": "much"}}, "ram_weight_multiplier"),
        (
            {"scheduler": {"enabled_weighers": "metrics"}, "weighers": {"metrics_weight_setting": "cpu.percent=often"}},
            "metrics_weight_setting",
        ),
        ({"scheduler": {"enabled_request_filters": "pci"}, "request_filters": {"pci_alias": "{"}}, "pci_alias"),
    ],
)
def test_an_invalid_configuration_is_refused_as_a_whole_and_the_policy_stays(
    configured: Configured, caplog: pytest.LogCaptureFixture, wrong: Settings, reason: str
) -> None:
    service = configured.start()
    before = configured.policy()
    # The file also has a valid change.
    right = {"enabled_request_filters": "extra_specs", **wrong.get("scheduler", {})}
    configured.write("one", {**wrong, "scheduler": right})
    with caplog.at_level(logging.ERROR):
        service.reload()
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert re.search(reason, line)
    assert before.fingerprint in line
    after = configured.policy()
    assert (after.fingerprint, after.filters, after.weighers) == (before.fingerprint, before.filters, before.weighers)
    assert re.search(reason, after.refused.reason)
    assert plugins_of(configured.explains()) == BY_ONE
    configured.write("one", OTHER)
    service.reload()
    assert configured.policy().refused is None


@pytest.mark.parametrize("lines", [0, 2], ids=["empty", "truncated after the broker"])
def test_an_empty_or_truncated_file_is_refused(configured: Configured, lines: int) -> None:
    service = configured.start()
    before = configured.policy()
    file = configured.file("one")
    file.write_text("\n".join(file.read_text().splitlines()[:lines]))
    service.reload()
    after = configured.policy()
    assert (after.fingerprint, after.filters, after.weighers) == (before.fingerprint, before.filters, before.weighers)
    assert f"is not set in {file}" in after.refused.reason


def test_options_that_need_a_restart_are_named(configured: Configured, caplog: pytest.LogCaptureFixture) -> None:
    service = configured.start()
    configured.write("one", {**OTHER, "rpc": {"threads": "3"}, "conductor": {"connection": "sqlite:///secret"}})
    with caplog.at_level(logging.WARNING):
        service.reload()
    assert configured.policy().needs_restart == ("[conductor] connection", "[rpc] threads")
    assert plugins_of(configured.explains()) == BY_OTHER
    assert "not taken before a restart: [conductor] connection, [rpc] threads" in caplog.text
    assert "secret" not in caplog.text


def test_the_name_of_a_service_in_its_log_needs_no_restart(configured: Configured) -> None:
    conf = options.new(files=[configured.file("one")])
    # The set-up of the log of a process does the same.
    conf.set_default("log_service_name", "scheduler.one")
    service = SchedulerService(conf, "one")
    configured.services.append(service)
    service.start()
    service.reload()

    assert configured.policy().needs_restart == ()


def test_an_explanation_with_a_broken_plugin_names_it_and_the_remedy(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"scheduler": {"enabled_weighers": "metrics"}, "weighers": {"metrics_weight_setting": "load=-1.0"}}
    configured.write("one", metrics)
    configured.start()
    operator = Operator(configured.file("one"), capsys, configured.rig)
    status, shown, output = operator.runs("explain", "--vcpus", "1", "--memory-mb", "1")

    assert (status, shown) == (3, None)
    assert "The weigher metrics cannot use a value that it was given: its score of host" in output
    assert "correct it there" in output


def test_the_status_is_wrong_until_a_request_is_decided_after_a_plugin_has_failed(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = {"scheduler": {"enabled_weighers": "metrics"}, "weighers": {"metrics_weight_setting": "load=-1.0"}}
    configured.write("one", broken)
    service = configured.start()
    report_scheduler(configured.bus, "one")
    operator = Operator(configured.file("one"), capsys, configured.rig)

    def line() -> tuple[str, str]:
        _status, lines, _said = operator.runs("status", "--timeout", "5")
        [found] = [line for line in lines if line["part"] == "plug-ins of one"]
        return found["state"], found["detail"]

    with pytest.raises(errors.BrokenPlugin):
        configured.bus.client("scheduler").call(select("r1"))
    since = "broken since it was started: weigher metrics 1 time(s)"
    assert line() == ("wrong", f"no request has been decided since it broke: weigher metrics; {since}")
    configured.write("one", ONE)
    service.reload()
    configured.bus.client("scheduler").call(select("r2"))
    assert line() == ("ok", since)


def test_a_table_of_policies_has_a_column_for_each_scheduler_and_shows_equal_parts_once(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(configured.file("one"), capsys, configured.rig)
    more = {**ONE, "scheduler": {**ONE["scheduler"], "enabled_filters": "compute,io_ops,metrics,image_properties"}}
    configured.write("one", more)
    configured.write("two", {**more, "scheduler": {**more["scheduler"], "enabled_weighers": "build_failure"}})
    for name in ("one", "two"):
        configured.start(name)
        report_scheduler(configured.bus, name)
    assert main(["--config-file", str(operator.config_file), "scheduler", "config", "show"]) == 1
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    ]

    assert rows[0] == ["Field", "one", "two"]
    assert ["filters", "compute", "as one"] in rows
    assert [row[1] for row in rows if row[1].startswith(("io_ops", "max_io", "required", "image_properties_d"))] == [
        *("io_ops", "max_io_ops_per_host = 8", "required_metrics =", "image_properties_default_architecture ="),
    ]
    assert ["weighers", "ram x 2", "build_failure x 1,000,000"] in rows


def reload_refused(service: SchedulerService) -> float:
    """Return the value of the metric that is 1 if the last reload was refused."""
    [sample] = service.samplers()["policy"]()
    assert sample.gauge.name == "moorage_reload_refused"
    return sample.value


def test_a_port_from_the_command_line_is_not_a_changed_option(configured: Configured) -> None:
    service = configured.start("one")
    configured.write("one", {**ONE, "service": {"metrics_port": "9999", "report_interval": "7.0"}})
    service.reload()
    shown = configured.bus.client("scheduler", "one").call(ShowPolicy())
    assert shown.needs_restart == ("[service] report_interval",)


def test_counters_of_alerts_exist_before_their_first_count(configured: Configured) -> None:
    configured.start("one")
    for name, labels in (
        ("moorage_reconciler_actions_total", {"outcome": "released"}),
        ("moorage_reconciler_actions_total", {"outcome": "unknown"}),
        ("moorage_plugin_failures_total", {"kind": "weigher", "plugin": "ram"}),
        ("moorage_rpc_late_total", {"topic": "scheduler", "method": "select_destinations"}),
    ):
        assert metrics.REGISTRY.get_sample_value(name, labels) is not None, name


def test_the_policies_of_all_schedulers_are_shown_with_their_differences(
    configured: Configured, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(configured.file("one"), capsys, configured.rig)
    configured.write("two", ONE)
    one, _two = configured.start("one"), configured.start("two")
    for name in ("one", "two"):
        report_scheduler(configured.bus, name)
    shown = operator.types("scheduler", "config", "show")
    assert [each["scheduler"] for each in shown] == ["one", "two"]
    assert shown[0]["policy"] == shown[1]["policy"]
    assert [each["name"] for each in shown[0]["filters"]] == ["compute", "resources"]
    assert shown[0]["refused_reload"] is None
    assert reload_refused(one) == 0
    assert "ram x 2" in operator.reads("scheduler", "config", "show", "--scheduler", "one")
    configured.write("one", {**ONE, "weighers": {"ram_weight_multiplier": "3.0"}})
    one.reload()
    status, shown, said = operator.runs("scheduler", "config", "show")
    assert status == 1
    assert shown[0]["policy"] != shown[1]["policy"]
    assert "differs" in said
    assert "in weighers" in said
    configured.write("one", {"scheduler": {"enabled_filters": "moonshine"}})
    one.reload()
    [shown] = operator.types("scheduler", "config", "show", "--scheduler", "one")
    assert "moonshine" in shown["refused_reload"]["reason"]
    assert reload_refused(one) == 1
    _status, lines, _said = operator.runs("status")
    assert "moonshine" in next(line["detail"] for line in lines if line["part"] == "policy of one")
    status, shown, said = operator.runs("scheduler", "config", "show", "--scheduler", "three", "--timeout", "1")
    assert (status, shown) == (1, [])
    assert "Scheduler three does not answer" in said
