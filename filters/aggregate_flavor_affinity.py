"""The filter for aggregates that are reserved for flavors, by the metadata ``instance_type``."""

from collections.abc import Iterator
from functools import partial

from filters.metadata_values import admits
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_KEY = "instance_type"


class AggregateFlavorAffinityFilter(ConditionsFilter):
    """Passes hosts of aggregates that name the flavor, and hosts whose aggregates name none."""

    reason = "is in an aggregate for other flavors"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the flavor is admitted."""
        yield hosts.where_metadata(_KEY, partial(admits, request.flavor.name))
