"""An aggregate may be kept for images: those whose property has a value that the aggregate's metadata names."""

from collections.abc import Iterator
from functools import partial

from filters.metadata_values import listed
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class AggregateImagePropertiesFilter(ConditionsFilter):
    """Passes hosts whose aggregates give a property of the image, where they name it at all, the image's value.

    What only one of both names binds nobody.
    """

    reason = "is in an aggregate for images with other properties"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the image has any properties."""
        return bool(request.image.properties)

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether each property is one that the host's aggregates put up with."""
        for name, value in request.image.properties.items():
            yield asked.where_metadata(name, partial(_puts_up_with, value))


def _puts_up_with(value: str, values: frozenset[str]) -> bool:
    return not values or value in listed(values)
