"""The filter for aggregates that are reserved for images with certain property values."""

from collections.abc import Iterator
from functools import partial

from filters.metadata_values import admits
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class AggregateImagePropertiesFilter(ConditionsFilter):
    """Passes hosts whose aggregate metadata do not contradict the properties of the image.

    A metadata key with the name of an image property must have the value of that property. A property or key that only
    one of the two has is ignored.
    """

    reason = "is in an aggregate for images with other properties"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the image has any properties."""
        return bool(request.image.properties)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield for each property whether the host's aggregates admit it."""
        for name, value in request.image.properties.items():
            yield hosts.where_metadata(name, partial(admits, value))
