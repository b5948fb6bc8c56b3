"""The base class of filters that have a reason for each condition."""

from abc import abstractmethod
from collections.abc import Iterator

from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

#: A condition for one host or for each host, and the reason for refusing a host that does not meet it.
Reasoned = tuple[Answer, str]


class ReasonedFilter(ConditionsFilter):
    """Passes hosts that meet all conditions, and names those that a host does not meet."""

    @abstractmethod
    def reasoned(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Reasoned]:
        """Yield the conditions, each with its reason."""

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield the conditions without their reasons."""
        return (condition for condition, _ in self.reasoned(hosts, request))

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the reasons of the conditions that ``host`` does not meet."""
        return "; ".join(dict.fromkeys(self.unmet(host, request))) or self.reason

    def unmet(self, host: Host, request: RequestSpec) -> Iterator[str]:
        """Yield the reason of each condition that ``host`` does not meet."""
        return (reason for condition, reason in self.reasoned(host, request) if not condition)
