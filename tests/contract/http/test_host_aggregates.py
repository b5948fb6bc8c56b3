"""Test that host aggregates are ordinary aggregates of providers for clients of the HTTP API."""

import pytest
from support.http.api import Api
from support.http.replies import Http
from support.scheduler.builders import CELLS
from support.scheduler.rig import report

from moorage import ids
from moorage.messages import AddAggregateHost, CreateHostAggregate, ReportHosts
from placement_store import cells
from scheduler.registry import reports
from scheduler.registry.aggregates import changes


@pytest.fixture
def ssd(api: Api) -> str:
    """The uuid of a host aggregate with host1, whose compute node has no provider yet."""
    database = api.store.database
    cells.create(database, name="cell0", uuid=CELLS[0])
    brought = ReportHosts(request_id="r", cell_uuid=CELLS[0], hosts=(report(1),))
    database.write(lambda connection: reports.write(connection, brought))
    created = CreateHostAggregate(request_id=ids.fresh(), name="ssd")
    uuid = database.write(lambda connection: changes.create(connection, created)).uuid
    joining = AddAggregateHost(request_id="r", aggregate="ssd", service_host="host1")
    database.write(lambda connection: changes.add_host(connection, joining))
    return uuid


def node_of_host1(http: Http) -> str:
    uuid = report(1).compute_node_uuid
    assert http.post("/resource_providers", {"name": "host1", "uuid": uuid}).status == 200
    return uuid


def test_the_node_of_a_host_is_in_its_host_aggregate_and_a_put_does_not_remove_it(http: Http, ssd: str) -> None:
    node, other = node_of_host1(http), http.provider()
    path, one, two = f"/resource_providers/{node}/aggregates", ids.fresh(), ids.fresh()
    assert http.get(path).body == {"aggregates": [ssd], "resource_provider_generation": 0}
    written = http.put(path, {"aggregates": [two, one], "resource_provider_generation": 0})
    # In the order in which they were sent, then those that stay.
    assert written.body == {"aggregates": [two, one, ssd], "resource_provider_generation": 1}
    assert http.put(path, [], "1.18").body == {"aggregates": [ssd]}
    named = {"aggregates": [ssd, one], "resource_provider_generation": 1}
    assert http.put(path, named).body["aggregates"] == [ssd, one]
    assert http.put(f"/resource_providers/{other}/aggregates", [one], "1.18").body == {"aggregates": [one]}


def test_providers_are_found_by_host_aggregate(http: Http, ssd: str) -> None:
    node = node_of_host1(http)
    http.provider()
    assert [one["uuid"] for one in http.get(f"/resource_providers?member_of={ssd}").body["resource_providers"]] == [
        node
    ]
    assert node not in {
        one["uuid"] for one in http.get(f"/resource_providers?member_of=!{ssd}").body["resource_providers"]
    }
