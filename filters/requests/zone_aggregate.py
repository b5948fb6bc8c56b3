"""The request filter for availability zones that are host aggregates."""

from filters.requests.merging import changed, with_more
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_ZONE = "availability_zone"


class ZoneAggregateRequestFilter(RequestFilter):
    """Restricts a request to the aggregates whose metadata have its availability zone.

    A zone without aggregates is left to the filter availability_zone.
    """

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return the request with the condition that a host is in one of the zone's aggregates."""
        zone = request.availability_zone
        if zone is None:
            return request
        of_zone = tuple(known.uuid for known in cloud.aggregates() if known.metadata.get(_ZONE) == zone)
        if not of_zone:
            return request
        return changed(request, root_member_of=with_more(request.root_member_of, [of_zone]))
