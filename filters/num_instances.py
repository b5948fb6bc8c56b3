"""The filter for hosts with too many servers."""

from collections.abc import Iterator

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_MOST = "max_instances_per_host"


class NumInstancesFilter(ConditionsFilter):
    """Passes hosts on which fewer servers than the limit are placed."""

    reason = "has as many servers as one host may have"
    numeric_metadata = (_MOST,)
    options = (
        cfg.IntOpt(
            _MOST,
            default=50,
            min=1,
            help="The maximum number of servers on a host, if the filter num_instances is enabled. Metadata of the "
            "same name overrides it for the hosts of an aggregate; the smallest value counts.",
        ),
    )

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:  # noqa: ARG002
        """Yield whether there is room for one more.

        :raises BadValue: a value of the metadata is not a number.
        """
        yield np.less(hosts.instances, hosts.metadata_number(_MOST, self.settings[_MOST]))

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return the number of servers on ``host``, and its limit."""
        most = host.metadata_number(_MOST, self.settings[_MOST])
        return f"has {host.instances} servers on it, and may have {most:g}"
