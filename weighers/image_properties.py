"""The weigher for hosts with, or without, servers of similar images; by default it has no effect."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Amount, Host, HostView
from weighers.formula import FormulaWeigher
from weighers.ratios import ratios

_SETTING = "image_props_weight_setting"


class ImagePropertiesWeigher(FormulaWeigher):
    """Weighs a host by the number of its servers whose image has a property of the request's image: more are better.

    Every property counts by itself: a server with three common properties counts three times.
    """

    default_multiplier = 0.0
    options = (
        cfg.ListOpt(
            _SETTING,
            default=[],
            help="The image properties that the weigher image_properties counts, each with its factor, such as "
            "os_distro=2.0,hw_machine_type=0.5. By default all properties have the factor 1. Cells report only the "
            "properties in [conductor] reported_image_properties.",
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Parse the setting.

        :raises ConfigurationError: it is not valid.
        """
        super().__init__(settings)
        self._ratios = ratios(_SETTING, settings[_SETTING])

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the image has a property that counts."""
        return any(True for _ in self._counted(request))

    def score(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        """Return the weighted number of image properties that the servers on a host have in common with the request."""
        counted: Amount = 0.0
        for name, value, ratio in self._counted(request):
            counted = np.add(counted, np.multiply(ratio, hosts.servers_with(name, value)))
        return counted

    def _counted(self, request: RequestSpec) -> Iterator[tuple[str, str, float]]:
        for name, value in request.image.properties.items():
            ratio = self._ratios.get(name, 0.0) if self._ratios else 1.0
            if ratio:
                yield name, value, ratio
