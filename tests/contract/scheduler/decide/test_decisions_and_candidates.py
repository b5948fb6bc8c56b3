"""Test that the scheduler finds no valid host only if the store has no allocation candidate on the same hosts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, select, update
from support.placement_store.candidate_enumeration import trees_in_the_store
from support.scheduler.builders import host_row, instance_uuids
from support.scheduler.rig import Rig
from support.scheduler.trees import TRAITS, granular_requests, is_valid, providers_of_hosts

from moorage import errors
from moorage.ids import fresh
from moorage.messages import (
    EnsureTrait,
    PutAllocations,
    ReportProviders,
    SelectDestinations,
)
from moorage.model import (
    ConsumerAllocations,
    HostReport,
    Inventory,
    ProviderAmounts,
    ProviderReport,
    RequestSpec,
)
from placement_store import candidates
from placement_store.db.names import sync
from placement_store.schema import METADATA, cells, resource_classes, resource_providers, traits
from scheduler.view.provider_trees import FetchedProvider

HOSTS = 3


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("decisions")
    rig = Rig(f"sqlite:///{folder}/main.sqlite")
    sync(rig.database)
    for name in TRAITS:
        rig.placement.call(EnsureTrait(request_id=fresh(), name=name))
    yield rig
    rig.close()


def empty(rig: Rig) -> None:
    """Delete everything but names and cells."""
    with rig.database.engine.connect() as connection, connection.begin():
        connection.execute(update(resource_providers).values(root_provider_id=None, parent_provider_id=None))
        for table in METADATA.sorted_tables:
            if table not in (cells, traits, resource_classes):
                connection.execute(delete(table))


def describe(rig: Rig, providers: list[FetchedProvider]) -> None:
    """Write these providers to the store, and what is used of them as allocations of other consumers."""
    uuids = {one.id: one.uuid for one in providers}
    reports = tuple(
        ProviderReport(
            uuid=one.uuid,
            name=one.uuid,
            parent_provider_uuid=None if one.parent_id is None else uuids[one.parent_id],
            inventories={
                name: Inventory(**{field: getattr(held, field) for field in Inventory.__struct_fields__})
                for name, held in one.inventories.items()
            },
            traits=tuple(one.traits),
            aggregates=tuple(one.aggregates),
        )
        for one in providers
    )
    rig.placement.call(ReportProviders(request_id=fresh(), providers=reports))
    for one in providers:
        for name, held in one.inventories.items():
            if held.used and held.min_unit <= held.used <= held.max_unit and held.used % held.step_size == 0:
                hold(rig, one.uuid, name, held.used)
    rows = [host_row(number) for number in range(HOSTS)]
    rig.report(
        [HostReport(**{field: getattr(row, field) for field in REPORTED}) for row in rows],
        [row.service_host for row in rows],
    )


REPORTED = ("service_host", "nodename", "compute_node_uuid", "agent", "availability_zone")


def hold(rig: Rig, provider: str, name: str, amount: int) -> None:
    wanted = ConsumerAllocations(
        allocations={provider: ProviderAmounts(resources={name: amount})},
        project_id="other",
        user_id="other",
        consumer_generation=None,
    )
    with contextlib.suppress(errors.CapacityExceeded):
        rig.placement.call(PutAllocations(request_id=fresh(), consumer_uuid=fresh(), wanted=wanted))


def feasible(rig: Rig, request: RequestSpec) -> set[str]:
    """Return the hosts for which the store has a candidate."""

    def work(connection: Connection) -> set[str]:
        nodes = {host_row(number).compute_node_uuid: f"host{number}" for number in range(HOSTS)}
        query = select(resource_providers.c.id).where(resource_providers.c.uuid.in_(nodes))
        trees = trees_in_the_store(connection, rig.names, list(connection.scalars(query)))
        return {
            nodes[tree.root.uuid]
            for tree in trees.values()
            if next(candidates.search(tree, request.resource_request), None) is not None
        }

    return rig.database.read(work)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(providers=providers_of_hosts(HOSTS), request=granular_requests(), stale=st.booleans())
def test_hosts_are_found_exactly_where_the_store_has_a_candidate(
    rig: Rig, providers: list[FetchedProvider], request: RequestSpec, stale: bool
) -> None:
    assume(is_valid(request))
    empty(rig)
    # A view that is older than the providers must lead to the same answer.
    scheduler = rig.scheduler(max_age=3600.0 if stale else 0.0)
    describe(rig, providers)
    hosts = feasible(rig, request)
    request_id = fresh()
    message = SelectDestinations(
        request_id=request_id,
        request_spec=request,
        instance_uuids=instance_uuids(request_id, 1),
        num_alternates=HOSTS,
    )
    try:
        [selections] = scheduler.select(message)
    except errors.NoValidHost:
        event("no valid host")
        assert not hosts
    else:
        event("claimed")
        assert {selection.service_host for selection in selections} == hosts
    finally:
        scheduler.database.close()
    assert not rig.audit().overcommitted
