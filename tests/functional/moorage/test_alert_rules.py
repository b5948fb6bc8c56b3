"""Test that alert rules and dashboard use existing metrics, and with promtool that the rules raise their alerts."""

import json
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram, Summary, generate_latest
from support.processes.private_servers import program

from moorage import metrics
from moorage.cli.serving import Serving

REPOSITORY = Path(__file__).parents[3]
RULES = REPOSITORY / "etc/prometheus/moorage.rules.yml"
DASHBOARD = REPOSITORY / "etc/grafana/moorage.json"
PAGE = REPOSITORY / "docs/operator/runbook.md"
SERIES = Path(__file__).parent / "alert_rules_test.yml"
_NAME = re.compile(r"\bmoorage_\w+")


def declared() -> dict[str, set[str]]:
    """Return all samples of a scrape with their labels, without the bounds of histograms."""
    names = {gauge.name: set(gauge.labels) for gauge in metrics.SAMPLED}
    for metric in vars(metrics).values():
        if isinstance(metric, Counter | Gauge | Histogram | Summary):
            kind = metric._type
            suffixes = {"counter": ["_total"], "gauge": [""], "summary": ["_sum", "_count"]}
            for suffix in suffixes.get(kind, ["_sum", "_count", "_bucket"]):
                names[metric._name + suffix] = set(metric._labelnames)
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def targets() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + list(targets())


def test_each_metric_in_an_expression_exists() -> None:
    known = declared()
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert len(named) > 20
    assert named <= known.keys()


def test_each_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in targets() for name in _NAME.findall(expression)}
    missing = {
        name.removesuffix("_total") for name in declared() if not name.endswith(("_sum", "_count", "_bucket"))
    } - {name.removesuffix("_total") for name in shown}
    assert missing == set()


def test_each_label_in_an_expression_is_a_label_of_the_metric() -> None:
    known = declared()
    for expression in expressions():
        for name, choice in re.findall(r"\b(moorage_\w+)\{([^}]*)\}", expression):
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", choice):
                assert label in known[name] | {"job", "instance", "le"}, expression


def test_each_alert_has_a_summary_a_severity_and_a_section_of_the_runbook() -> None:
    parts = re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)
    sections = {found[1]: part for part in parts if (found := re.search(r"\{#([a-z-]+)\}$", part.splitlines()[0]))}
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"warning", "critical"}
        page, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert (REPOSITORY / page).samefile(PAGE)
        assert f"`{rule['alert']}`" in sections[section]
        assert "- **Cure**" in sections[section], section


def test_the_runbook_names_only_existing_alerts() -> None:
    named = set(re.findall(r"`(Moorage[A-Za-z]+)`", PAGE.read_text()))
    assert named == {rule["alert"] for rule in rules()}


def test_the_sample_and_the_rules_name_a_job_for_each_service_that_has_metrics() -> None:
    served = {point.name for point in metadata.entry_points(group="moorage.cli") if issubclass(point.load(), Serving)}
    # A cell's conductor is started by the same command. The placement API serves its metrics at its own port.
    expected = {f"moorage-{name}" for name in served | {"cell-conductor", "placement-api"}}

    sample = yaml.safe_load(RULES.with_name("prometheus.yml.sample").read_text())
    assert {job["job_name"] for job in sample["scrape_configs"]} == expected
    header = RULES.read_text().partition("groups:")[0]
    assert set(re.findall(r"moorage-[a-z-]+", header)) == expected


@pytest.fixture
def promtool() -> str:
    return program("promtool", "prometheus")


def test_prometheus_accepts_the_rules(promtool: str) -> None:
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


def test_prometheus_accepts_the_sample_of_a_scrape_configuration(promtool: str) -> None:
    sample = RULES.with_name("prometheus.yml.sample")
    done = subprocess.run([promtool, "check", "config", str(sample)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job_name"] for job in yaml.safe_load(sample.read_text())["scrape_configs"]}
    assert {job for text in expressions() for job in re.findall(r'job="([^"]+)"', text)} <= jobs


def test_series_raise_the_expected_alerts(promtool: str, tmp_path: Path) -> None:
    series = tmp_path / "series.yml"
    series.write_text(SERIES.read_text().replace("- RULES", f"- {RULES}"))
    done = subprocess.run([promtool, "test", "rules", str(series)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_format_of_a_scrape(promtool: str) -> None:
    done = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(metrics.REGISTRY), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
