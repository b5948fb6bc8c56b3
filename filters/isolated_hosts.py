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
            help="Ids of images that may run only on isolated_hosts, if the filter isolated_hosts is enabled.",
        ),
        cfg.ListOpt(
            "isolated_hosts",
            default=[],
            help="Names of the hosts for isolated_images. Upper and lower case are not distinguished.",
        ),
        cfg.BoolOpt(
            "restrict_isolated_hosts_to_isolated_images",
            default=True,
            help="Whether isolated_hosts are closed to all other images.",
        ),
    )

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host and the image are both isolated, or neither."""
        isolated = hosts.named(self.settings["isolated_hosts"])
        if request.image.id in self.settings["isolated_images"]:
            yield isolated
        elif self.settings["restrict_isolated_hosts_to_isolated_images"]:
            yield np.logical_not(isolated)
