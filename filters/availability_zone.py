"""The filter for a requested availability zone."""

from collections.abc import Iterator

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView


class AvailabilityZoneFilter(ConditionsFilter):
    """Passes hosts of the requested availability zone, compared with case; all hosts without a requested zone."""

    reason = "is in another availability zone"

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return the zone of ``host``."""
        return f"is in availability zone {host.availability_zone}"

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host is in the zone."""
        if request.availability_zone is not None:
            yield hosts.in_zone(request.availability_zone)
