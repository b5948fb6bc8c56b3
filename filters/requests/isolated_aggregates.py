"""The request filter for isolated aggregates: their metadata name traits that a request must require."""

from collections.abc import Mapping

from filters.requests.merging import changed, with_more
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_SCOPE = "trait:"


class IsolatedAggregatesRequestFilter(RequestFilter):
    """Excludes the hosts of aggregates with ``trait:X=required`` unless the request requires all such X.

    It must run after the request filters that add required traits.
    """

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return the request with the excluded aggregates."""
        required = {*request.root_required, *(trait for group in request.groups.values() for trait in group.required)}
        closed = [known.uuid for known in cloud.aggregates() if not _asked_for(known.metadata) <= required]
        if not closed:
            return request
        return changed(request, root_not_member_of=with_more(request.root_not_member_of, closed))


def _asked_for(metadata: Mapping[str, str]) -> set[str]:
    return {
        key.removeprefix(_SCOPE) for key, value in metadata.items() if key.startswith(_SCOPE) and value == "required"
    }
