"""Test the metrics: their names and labels as Prometheus wants them, their table in the docs, and their cost."""

import re
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from support.moorage.executed_lines import executed_lines

from moorage import metrics

PAGE = Path(__file__).parents[3] / "docs/operator/metrics.md"
#: The limit for the cost of one count.
MAX_LINES = 200


def declared() -> list[MetricWrapperBase]:
    return [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


def test_the_table_in_the_docs_has_each_metric_with_its_type_its_labels_and_its_meaning() -> None:
    rows = [
        (each._name + "_total" * (each._type == "counter"), each._type, each._labelnames, each._documentation)
        for each in declared()
    ] + [(each.name, "gauge, sampled", each.labels, each.documentation) for each in metrics.SAMPLED]
    expected = {
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '—'} | {meaning} |"
        for name, kind, labels, meaning in rows
    }
    found = {line for line in PAGE.read_text().splitlines() if line.startswith("| `moorage_")}
    assert found == expected


def test_each_name_has_our_prefix_and_base_units() -> None:
    for name in [each._name for each in declared()] + [gauge.name for gauge in metrics.SAMPLED]:
        assert re.fullmatch(r"moorage_[a-z_]+", name)
        assert not re.search(r"_(ms|millis|minutes|percent|mb)(_|$)", name)


def test_no_label_names_a_host_an_instance_or_a_cell() -> None:
    labels = {label for each in declared() for label in each._labelnames}
    labels |= {label for gauge in metrics.SAMPLED for label in gauge.labels}
    assert labels == {
        *("topic", "method", "result", "kind", "schema", "why", "stage", "plugin", "outcome", "step"),
        *("path", "status", "check", "state"),
    }


def test_metrics_that_the_processes_of_the_api_share_have_labels() -> None:
    # A metric without labels has a value as soon as it is declared, when the shared folder is not known yet.
    shared = ("moorage_http", "moorage_database", "moorage_batch")
    assert all(each._labelnames for each in declared() if each._name.startswith(shared))


def test_counting_costs_few_lines_of_python() -> None:
    histogram = metrics.RPC_SECONDS.labels("a topic of this test", "another method")

    def count() -> None:
        metrics.RPC_REQUESTS.labels("a topic of this test", "another method", metrics.OK).inc()
        with histogram.time():
            pass

    count()
    assert executed_lines(count) < MAX_LINES
