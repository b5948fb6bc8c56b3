"""The filter for isolated hosts, which the configuration reserves for isolated images."""

from collections.abc import Iterator

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class IsolatedHostsFilter(ConditionsFilter):
    """Passes isolated hosts for isolated images, and the other hosts for the other images."""

    reason = "is isolated and the image is not, or the other way round"
    options = (
        cfg.ListOpt(
            "isolated_images",
            default=[],
            help="Images, by id, that go to isolated_hosts only, where the filter isolated_hosts is enabled.",
        ),
        cfg.ListOpt(
            "isolated_hosts", default=[], help="Hosts, by name in upper or lower case, that isolated_images go to."
        ),
        cfg.BoolOpt(
            "restrict_isolated_hosts_to_isolated_images",
            default=True,
            help="Whether other images keep away from isolated_hosts.",
        ),
    )

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host and the image are both isolated, or neither."""
        isolated = asked.named(self.settings["isolated_hosts"])
        if request.image.id in self.settings["isolated_images"]:
            yield isolated
        elif self.settings["restrict_isolated_hosts_to_isolated_images"]:
            yield np.logical_not(isolated)
