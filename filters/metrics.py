"""The filter for hosts that report all required metrics."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView, measured


class MetricsFilter(ConditionsFilter):
    """Passes hosts whose driver reports a number for each required metric, in the attribute ``metrics``."""

    reason = "does not report the required metrics"
    options = (
        cfg.ListOpt(
            "required_metrics",
            default=[],
            help="Metrics that a host must report, if the filter metrics is enabled. Name the metrics of [weighers] "
            "metrics_weight_setting, so that the weigher finds them for every host.",
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        if "" in settings["required_metrics"]:
            raise ValueError("required_metrics has two commas without a name between them")

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether any metrics are required."""
        return bool(self.settings["required_metrics"])

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:  # noqa: ARG002
        """Yield for each metric whether it is reported."""
        for name in self.settings["required_metrics"]:
            yield np.isfinite(hosts.number_from(f"metrics.{name}", measured))
