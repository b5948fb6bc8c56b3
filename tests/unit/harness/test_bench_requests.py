"""The requests of benchmarks: the share of them in server groups, and the members of a group."""

from collections import Counter
from itertools import islice

import pytest

from harness.bench.requests import GROUP_MEMBERS, Request
from moorage import errors
from moorage.messages import SelectDestinations


def first(request: Request, client: int = 0, count: int = 400) -> list[SelectDestinations]:
    return list(islice(request.messages(client), count))


def test_the_share_of_requests_in_groups_is_the_configured_one_in_every_run() -> None:
    runs = [[message.request_spec.server_group is not None for message in first(Request(groups=0.3))] for _ in range(2)]
    assert runs[0] == runs[1]
    assert sum(runs[0]) / len(runs[0]) == pytest.approx(0.3, abs=0.05)
    assert all(message.request_spec.server_group is None for message in first(Request()))


@pytest.mark.parametrize(("per_request", "members"), [(1, GROUP_MEMBERS), (3, 9), (50, 50)])
def test_a_group_is_full_before_the_next_one_begins(per_request: int, members: int) -> None:
    counts: Counter[str] = Counter()
    for message in first(Request(per_request=per_request, groups=1.0)):
        assert message.request_spec.server_group is not None
        counts[message.request_spec.server_group.uuid] += len(message.instance_uuids)
    # The last group may be incomplete.
    assert {*list(counts.values())[:-1]} == {members}


def test_clients_share_no_group() -> None:
    groups = [{str(message.request_spec.server_group) for message in first(Request(groups=1.0), n)} for n in (0, 1)]
    assert groups[0].isdisjoint(groups[1])


def test_too_few_hosts_for_a_group_are_refused() -> None:
    Request(groups=0.5).check(GROUP_MEMBERS)
    Request(per_request=50).check(1)
    for request, hosts in ((Request(groups=0.5), GROUP_MEMBERS - 1), (Request(per_request=50, groups=0.5), 49)):
        with pytest.raises(errors.ConfigurationError, match="each member on a host of its own"):
            request.check(hosts)
