"""The filter for aggregates that are reserved for projects, by metadata keys that begin with ``filter_tenant_id``."""

from collections.abc import Iterator
from functools import partial

from filters.metadata_values import admits
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

#: One value is too short for many projects, so any number of keys may begin with this text.
_KEYS = "filter_tenant_id"


class AggregateMultiTenancyFilter(ConditionsFilter):
    """Passes hosts of aggregates that name the request's project, and hosts whose aggregates name none.

    It keeps other projects off these hosts. It does not restrict the project to them: the request filter
    tenant_aggregate does that.
    """

    reason = "is in an aggregate for other projects"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the project is admitted."""
        yield hosts.where_metadata_under(_KEYS, partial(admits, request.project_id))
