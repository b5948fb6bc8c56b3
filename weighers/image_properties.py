"""The weigher for hosts with servers of similar images, or without them; by default it does not count."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Amount, FloatArray, Host, HostView, Weigher
from weighers.ratios import ratios

_SETTING = "image_props_weight_setting"


class ImagePropertiesWeigher(Weigher):
    """Weighs a host by the number of its servers whose image has a property of the request's image: more are better.

    Every property counts by itself: a server with three common properties counts three times.
    """

    default_multiplier: ClassVar[float] = 0.0
    options: ClassVar[Sequence[cfg.Opt]] = [
        cfg.ListOpt(
            _SETTING,
            default=[],
            help="The properties that the image_properties weigher counts, with how much each counts, such as "
            "os_distro=2.0,hw_machine_type=0.5. By default all count the same. Cells report only those that "
            "[conductor] reported_image_properties names.",
        )
    ]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Parse the setting.

        :raises ConfigurationError: it is not valid.
        """
        super().__init__(settings)
        self._ratios = ratios(_SETTING, settings[_SETTING])

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the image has a property that counts."""
        return any(True for _ in self._counted(request))

    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the weighted number of common image properties of the servers of ``host``."""
        return float(self._in_common(host, request))

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row."""
        return np.zeros(len(view)) + self._in_common(view, request)

    def _in_common(self, hosts: Host | HostView, request: RequestSpec) -> Amount:
        counted: Amount = 0.0
        for name, value, ratio in self._counted(request):
            counted = np.add(counted, np.multiply(ratio, hosts.servers_with(name, value)))
        return counted

    def _counted(self, request: RequestSpec) -> Iterator[tuple[str, str, float]]:
        for name, value in request.image.properties.items():
            ratio = self._ratios.get(name, 0.0) if self._ratios else 1.0
            if ratio:
                yield name, value, ratio
