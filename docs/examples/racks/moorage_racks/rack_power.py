"""Hosts of racks that have power to spare are better."""

from collections.abc import Sequence
from typing import ClassVar

from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import FloatArray, Host, HostView, Weigher

_BUDGET = "rack_power_budget"


class RackPowerWeigher(Weigher):
    """Weighs a host by the watts that its rack may still draw: its aggregate's budget less what its driver reports."""

    numeric_metadata: ClassVar[Sequence[str]] = (_BUDGET,)
    options: ClassVar[Sequence[cfg.Opt]] = [
        cfg.FloatOpt(
            _BUDGET,
            default=8000.0,
            min=0.0,
            help="The power budget of a rack in watts. Metadata of the same name overrides it for the hosts of an "
            "aggregate.",
        )
    ]

    def weigh(self, host: Host, request: RequestSpec) -> float:  # noqa: ARG002
        """Return the watts that are left in the rack of ``host``."""
        return host.metadata_number(_BUDGET, self.settings[_BUDGET]) - host.number("power.rack_watts")

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:  # noqa: ARG002
        """Return the same of all hosts."""
        return view.metadata_number(_BUDGET, self.settings[_BUDGET]) - view.number("power.rack_watts")
