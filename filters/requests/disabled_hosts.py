"""The request filter for hosts that are disabled by a trait of their driver."""

import os_traits

from filters.requests.merging import changed, with_more
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_DISABLED: str = os_traits.COMPUTE_STATUS_DISABLED


class DisabledHostsRequestFilter(RequestFilter):
    """Forbids COMPUTE_STATUS_DISABLED on the root of a host, as long as any host has it."""

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return the request with the forbidden trait; unchanged if no host has it, which saves a check."""
        if not cloud.has_trait(_DISABLED):
            return request
        return changed(request, root_forbidden=with_more(request.root_forbidden, [_DISABLED]))
