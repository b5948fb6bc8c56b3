"""The requests of benchmarks: for instances of one size, alone or in server groups."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from moorage import errors, ids
from moorage.messages import SelectDestinations
from moorage.model import Flavor, RequestSpec, ServerGroup

SPEC = RequestSpec(project_id="bench", user_id="bench", flavor=Flavor(vcpus=1, memory_mb=512, root_gb=1))
#: The same amounts of memory and disk, for a guest with two NUMA nodes, each on a NUMA node of its host.
_NESTED = {
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources1:VCPU": "1",
    "resources1:MEMORY_MB": "256",
    "resources2:VCPU": "1",
    "resources2:MEMORY_MB": "256",
    "group_policy": "isolate",
}
#: The number of members of a server group after which the next group begins; one request may add more.
GROUP_MEMBERS = 10


@dataclass(frozen=True)
class Request:
    """The shape of the measured requests.

    :param groups: the share of the requests whose instances are members of an anti-affinity group.
    :param nested: whether an instance takes its processors and memory from two NUMA nodes of its host.
    """

    per_request: int = 1
    alternates: int = 2
    groups: float = 0.0
    nested: bool = False

    def check(self, hosts: int) -> None:
        """Refuse requests for which there are too few hosts.

        :raises ConfigurationError: there are fewer hosts than members of a group, which must be on different hosts.
        """
        members = max(GROUP_MEMBERS, self.per_request)
        if self.groups and hosts < members:
            reason = f"--groups makes groups of {members}, each member on a host of its own: give at least that --hosts"
            raise errors.ConfigurationError(reason=reason)

    @property
    def spec(self) -> RequestSpec:
        """The request without a server group."""
        if not self.nested:
            return SPEC
        return structs.replace(SPEC, flavor=structs.replace(SPEC.flavor, vcpus=2, extra_specs=_NESTED))

    def message(self, group: ServerGroup | None = None) -> SelectDestinations:
        """Return a request for new instances."""
        return SelectDestinations(
            request_spec=structs.replace(self.spec, server_group=group),
            instance_uuids=tuple(ids.fresh() for _ in range(self.per_request)),
            num_alternates=self.alternates,
            request_id=ids.fresh(),
        )

    def messages(self, client: int) -> Iterator[SelectDestinations]:
        """Yield the requests of a client, without end: in every run the same requests are for groups."""
        drawn = random.Random(client)
        group, members = _new_group(), 0
        while True:
            if drawn.random() >= self.groups:
                yield self.message()
                continue
            if members and members + self.per_request > GROUP_MEMBERS:
                group, members = _new_group(), 0
            members += self.per_request
            yield self.message(group)


def _new_group() -> ServerGroup:
    return ServerGroup(uuid=ids.fresh(), policy="anti-affinity")
