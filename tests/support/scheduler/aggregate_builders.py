"""Host aggregates on a rig: clients that change them, and the resulting hosts, providers and views."""

from typing import Any

from sqlalchemy import select

from moorage.messages import (
    AddAggregateHost,
    CreateHostAggregate,
    DeleteHostAggregate,
    GetHostAggregate,
    GetResourceProvider,
    ListHostAggregates,
    RemoveAggregateHost,
    SetHostAggregate,
    SyncHostAggregates,
)
from moorage.model import HostAggregate, ResourceProvider, UnmirroredHost
from placement_store.db import change_feed
from placement_store.providers import rows as providers
from placement_store.schema import hosts as host_table
from scheduler.registry import hosts
from scheduler.registry.hosts import HostRow
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid


class Aggregates:
    """The host-aggregate endpoint of one scheduler, with shorter calls."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.call = rig.serve

    def create(self, name: str, *hosts: str, uuid: str | None = None, **metadata: str) -> HostAggregate:
        """Create an aggregate with these hosts."""
        message = CreateHostAggregate(request_id=self._rig.fresh(), name=name, metadata=metadata, uuid=uuid)
        created = self.call(message)
        for host in hosts:
            created = self.add(name, host)
        return created

    def change(self, aggregate: str, name: str | None = None, **metadata: str | None) -> HostAggregate:
        """Change the metadata or the name of an aggregate."""
        message = SetHostAggregate(request_id=self._rig.fresh(), aggregate=aggregate, name=name, metadata=metadata)
        self.call(message)
        return self.get(name or aggregate)

    def add(self, aggregate: str, host: str, cell: int | None = None) -> HostAggregate:
        """Add a host to an aggregate."""
        cell_uuid = None if cell is None else CELLS[cell]
        self.call(
            AddAggregateHost(request_id=self._rig.fresh(), aggregate=aggregate, service_host=host, cell_uuid=cell_uuid)
        )
        return self.get(aggregate)

    def remove(self, aggregate: str, host: str, cell: int | None = None) -> HostAggregate:
        """Remove a host from an aggregate."""
        cell_uuid = None if cell is None else CELLS[cell]
        self.call(
            RemoveAggregateHost(
                request_id=self._rig.fresh(), aggregate=aggregate, service_host=host, cell_uuid=cell_uuid
            )
        )
        return self.get(aggregate)

    def delete(self, aggregate: str, **how: bool) -> HostAggregate:
        """Delete an aggregate."""
        message = DeleteHostAggregate(request_id=self._rig.fresh(), aggregate=aggregate, **how)
        return self.call(message)

    def get(self, aggregate: str) -> HostAggregate:
        """Return an aggregate."""
        return self.call(GetHostAggregate(aggregate=aggregate))

    def listed(self, host: str | None = None) -> list[str]:
        """Return the names of all aggregates, or of those with a host."""
        found = self.call(ListHostAggregates(service_host=host))
        return [aggregate.name for aggregate in found]

    def sync(self, *, dry_run: bool = False) -> list[UnmirroredHost]:
        """Add the missing compute nodes to the provider aggregates."""
        message = SyncHostAggregates(request_id=self._rig.fresh(), dry_run=dry_run)
        return self.call(message)


def members(aggregate: HostAggregate) -> list[tuple[str, str]]:
    """Return the hosts of an aggregate, as its message lists them."""
    return [(host.cell_uuid, host.service_host) for host in aggregate.hosts]


def provider(rig: Rig, number: int) -> ResourceProvider:
    return rig.placement.call(GetResourceProvider(uuid=node_uuid(number)))


def all_rows(rig: Rig) -> list[HostRow]:
    """Return the rows that a view would read, of all nodes."""
    return rig.database.read(
        lambda connection: hosts.rows(connection, change_feed.seq_by_id(connection, host_table).keys())
    )


def host_rows(rig: Rig) -> dict[str, HostRow]:
    """Return the rows that a view would read, by host."""
    return {row.service_host: row for row in all_rows(rig)}


def marks(rig: Rig) -> tuple[int, dict[str, int]]:
    """Return the position of the feed, and the ``seq`` of every host."""
    seqs = select(host_table.c.service_host, host_table.c.seq)
    found = rig.database.read(lambda connection: connection.execute(seqs).all())
    return rig.database.read(change_feed.newest), {row.service_host: row.seq for row in found}


def told_since(rig: Rig, mark: tuple[int, dict[str, int]]) -> tuple[set[str], set[str]]:
    """Return the compute nodes that the feed has named since, and the hosts whose ``seq`` has changed."""
    newest, before = mark
    _, provider_ids, host_ids, *_ = rig.database.read(lambda connection: change_feed.changes_since(connection, newest))
    names = {row.id: row.service_host for row in host_rows(rig).values()}
    moved = {name for name, seq in marks(rig)[1].items() if seq != before.get(name)}
    assert {names[id_] for id_ in host_ids} == moved
    uuids = rig.database.read(lambda connection: providers.uuids_of(connection, provider_ids))
    return set(uuids.values()), moved


def metadata(rig: Rig, host: str) -> dict[str, Any]:
    """Return the metadata of a host's aggregates in the view."""
    return {key: set(values) for key, values in host_rows(rig)[host].metadata.items()}
