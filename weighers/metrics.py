"""The weigher for metrics from drivers."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Amount, FloatArray, Host, HostView, measured
from weighers.formula import FormulaWeigher
from weighers.ratios import ratios

_SETTING, _REQUIRED = "metrics_weight_setting", "metrics_required"
_OF_UNAVAILABLE = "metrics_weight_of_unavailable"


class MetricsWeigher(FormulaWeigher):
    """Weighs a host by the sum of its metrics times their ratios, from the driver's attribute ``metrics``.

    A host that does not report all of them has no score. Such a host is not refused: the request fails with an error of
    the weigher. To avoid this, enable the filter ``metrics``, or give such hosts a weight in the configuration.
    """

    options = (
        cfg.ListOpt(
            _SETTING,
            default=[],
            help="The metrics that the weigher metrics adds up, each with its factor, such as "
            "cpu.percent=-1.0,io_pressure=-0.5.",
        ),
        cfg.BoolOpt(
            _REQUIRED,
            default=True,
            help="Whether each host must report all of the metrics. If true, a request fails with an error that names "
            "a host that does not, unless the filter metrics has removed such hosts. If false, such a host has the "
            f"weight {_OF_UNAVAILABLE}.",
        ),
        cfg.FloatOpt(
            _OF_UNAVAILABLE,
            default=-10000.0,
            help="The weight of a host that does not report all of the metrics, if they are not required.",
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Parse the settings.

        :raises ConfigurationError: one of them is not valid.
        """
        super().__init__(settings)
        self._ratios = ratios(_SETTING, settings[_SETTING])
        self._unavailable = math.nan if settings[_REQUIRED] else float(settings[_OF_UNAVAILABLE])

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether any metrics count."""
        return bool(self._ratios)

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:  # noqa: ARG002
        """Return the sum of the metrics; NaN where a required one is not reported."""
        total: float | FloatArray = 0.0
        for name, ratio in self._ratios.items():
            total = total + ratio * hosts.number_from(f"metrics.{name}", measured)
        # The sum is NaN if one of the metrics is.
        found: Amount = np.where(np.isnan(total), self._unavailable, total)
        return found
