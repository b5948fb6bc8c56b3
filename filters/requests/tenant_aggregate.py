"""The request filter that restricts a project to the host aggregates that name it."""

from oslo_config import cfg

from filters.metadata_values import listed
from filters.requests.merging import changed, with_more
from moorage.model import RequestSpec
from moorage.plugin import Aggregate, Cloud, RequestFilter, RequestRefused

#: One value is too short for many projects, so any number of keys may begin with this text.
_KEYS = "filter_tenant_id"


class TenantAggregateRequestFilter(RequestFilter):
    """Restricts a request to the aggregates whose metadata name its project.

    It does not keep other projects off these aggregates: the filter aggregate_multi_tenancy does that.
    """

    options = (
        cfg.BoolOpt(
            "tenant_aggregate_required",
            default=False,
            help="Whether requests of a project that no host aggregate names (filter_tenant_id) are refused. If false, "
            "they may go to any host.",
        ),
    )

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        """Return the request with the condition that a host is in one of the project's aggregates.

        :raises RequestRefused: no aggregate names the project, and the configuration requires one.
        """
        project = request.project_id
        of_project = tuple(known.uuid for known in cloud.aggregates() if project in _projects(known))
        if of_project:
            return changed(request, root_member_of=with_more(request.root_member_of, [of_project]))
        if self.settings["tenant_aggregate_required"]:
            raise RequestRefused(f"is in no aggregate for project {project}: none has it under {_KEYS}, and one must")
        return request


def _projects(aggregate: Aggregate) -> set[str]:
    return listed(value for key, value in aggregate.metadata.items() if key.startswith(_KEYS))
