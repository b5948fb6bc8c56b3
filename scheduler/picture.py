"""The picture of all hosts in memory: what was last read of them, and what has been claimed here since.

It is a cache. Whoever changes it says what was read; whoever decides takes a snapshot. The claim transaction judges.
"""

import hashlib
import itertools
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from moorage.model import Resources
from moorage.plugin import HostInventory
from scheduler.columns import Column
from scheduler.hosts import HostRow
from scheduler.view import InventoryArrays, NameIndex, Snapshot

#: The ``seq`` of a row that is known not to be as the store has it; no row of the store has it.
UNSURE = -1


@dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider as it was read."""

    id: int
    uuid: str
    seq: int
    inventories: Mapping[str, HostInventory]


#: The number of the reading that is shown of each compute node's provider.
Readings = Mapping[str, int | None]


class _InventoryColumns:
    """The columns of one resource class."""

    def __init__(self, length: int) -> None:
        self.total = Column(np.int64)
        self.reserved = Column(np.int64)
        self.min_unit = Column(np.int64, 1)
        self.max_unit = Column(np.int64)
        self.step_size = Column(np.int64, 1)
        self.allocation_ratio = Column(np.float64, 1.0)
        self.capacity = Column(np.float64)
        self.used = Column(np.float64)
        self.resize(length)

    def resize(self, length: int) -> None:
        for column in vars(self).values():
            column.resize(length)

    def frozen(self) -> InventoryArrays:
        return InventoryArrays(**{field.name: getattr(self, field.name).frozen() for field in fields(InventoryArrays)})

    def put(self, row: int, inventory: HostInventory | None) -> None:
        if inventory is None:
            values = {"total": 0, "reserved": 0, "min_unit": 1, "max_unit": 0, "step_size": 1, "allocation_ratio": 1.0}
            values |= {"capacity": 0.0, "used": 0.0}
        else:
            values = {field.name: getattr(inventory, field.name) for field in fields(InventoryArrays)}
        for name, value in values.items():
            column = getattr(self, name)
            # Writing what is there already would copy a column for nothing: mostly `used` alone has changed.
            if column[row] != value:
                column[row] = value


class Picture:
    """All hosts as this scheduler knows them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hosts: list[HostRow] = []
        self._row_of_host: dict[int, int] = {}
        self._row_of_node: dict[str, int] = {}
        self._providers: dict[int, Provider] = {}
        self._provider_of_node: dict[str, int] = {}
        self._reading_of_provider: dict[int, int] = {}
        self._reading_numbers = itertools.count()
        self._unsure: set[int] = set()
        self._names: NameIndex | None = None
        self._alive = Column(np.bool_)
        self._forced_down = Column(np.bool_)
        self._disabled = Column(np.bool_)
        self._zones: dict[str, int] = {}
        self._zone_codes = Column(np.int32)
        self._cells: dict[str, int] = {}
        self._cell_codes = Column(np.int32)
        self._ties = Column(np.uint64)
        self._inventories: dict[str, _InventoryColumns] = {}
        self._snapshot: Snapshot | None = None
        self._hosts_are_shared = False

    # --- What decisions take ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return all hosts as they are now; the same object until something changes."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = self._new_snapshot()
            return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        if self._names is None:
            self._names = NameIndex(self._hosts)
        self._hosts_are_shared = True
        return Snapshot(
            hosts=self._hosts,
            names=self._names,
            alive=self._alive.frozen(),
            forced_down=self._forced_down.frozen(),
            disabled=self._disabled.frozen(),
            # Both only ever grow, and a code that is newer than the snapshot stands in none of its rows.
            zones=self._zones,
            zone_codes=self._zone_codes.frozen(),
            cells=self._cells,
            cell_codes=self._cell_codes.frozen(),
            ties=self._ties.frozen(),
            inventories={name: columns.frozen() for name, columns in self._inventories.items()},
        )

    # --- What followers compare and change --------------------------------------------------------------------------

    def provider_seqs(self) -> dict[int, int]:
        """Return the ``seq`` of every provider by id, :data:`UNSURE` where the picture runs ahead of what was read."""
        with self._lock:
            return {id_: UNSURE if id_ in self._unsure else known.seq for id_, known in self._providers.items()}

    def host_seqs(self) -> dict[int, int]:
        """Return the ``seq`` of every host by id."""
        with self._lock:
            return {host.id: host.seq for host in self._hosts}

    def unsure(self) -> set[int]:
        """Return the ids of the providers that have been claimed from here since they were last read."""
        with self._lock:
            return set(self._unsure)

    def provider_ids(self, node_uuids: Collection[str]) -> set[int]:
        """Return the ids of the providers of these compute nodes."""
        with self._lock:
            return {self._provider_of_node[uuid] for uuid in node_uuids if uuid in self._provider_of_node}

    def provider_uuids(self, ids: Collection[int]) -> dict[int, str]:
        """Return the uuids of those of these providers that are known."""
        with self._lock:
            return {id_: self._providers[id_].uuid for id_ in ids if id_ in self._providers}

    def update(
        self,
        *,
        hosts: Iterable[HostRow] = (),
        gone_hosts: Iterable[int] = (),
        providers: Iterable[Provider] = (),
        gone_providers: Iterable[int] = (),
    ) -> None:
        """Take over what was read; what was read without being found is gone."""
        with self._lock:
            self._snapshot = None
            for host_id in gone_hosts:
                self._drop_host(host_id)
            for host in hosts:
                self._put_host(host)
            for provider_id in gone_providers:
                self._drop_provider(provider_id)
            for provider in providers:
                self._put_provider(provider)

    def readings(self, node_uuids: Collection[str]) -> Readings:
        """Return which reading of each compute node's provider is shown, to be kept while claiming."""
        with self._lock:
            return {uuid: self._reading_of_node(uuid) for uuid in node_uuids}

    def claimed(self, claims: Iterable[tuple[str, Resources]], readings: Readings) -> None:
        """Show at once what was claimed here on some compute nodes.

        :param readings: those shown before the claim's transaction began. A provider that was read anew since may show
            the claim already. Counting it twice would hide room that there is, so there it waits for the next reading.
        """
        with self._lock:
            self._snapshot = None
            for uuid, resources in claims:
                row = self._row_of_node.get(uuid)
                reading = self._reading_of_node(uuid)
                if row is None or reading is None:
                    continue
                self._unsure.add(self._provider_of_node[uuid])
                if reading == readings.get(uuid):
                    self._use(row, resources)

    def _reading_of_node(self, node_uuid: str) -> int | None:
        provider_id = self._provider_of_node.get(node_uuid)
        return None if provider_id is None else self._reading_of_provider[provider_id]

    def _use(self, row: int, resources: Resources) -> None:
        for name, amount in resources.items():
            if name in self._inventories:
                used = self._inventories[name].used
                used[row] = used[row] + amount

    # --- Hosts ------------------------------------------------------------------------------------------------------

    def _put_host(self, host: HostRow) -> None:
        self._own_hosts()
        row = self._row_of_host.get(host.id)
        if row is None:
            row = self._row_of_host[host.id] = len(self._hosts)
            self._hosts.append(host)
            self._resize(row + 1)
            self._names = None
            before = None
        else:
            before = self._hosts[row]
            self._hosts[row] = host
            del self._row_of_node[before.compute_node_uuid]
            if (before.service_host, before.nodename) != (host.service_host, host.nodename):
                self._names = None
        self._describe(row)
        # Not for every change of a host: what was claimed here since its provider was read would be lost.
        if before is None or before.compute_node_uuid != host.compute_node_uuid:
            self._put_inventories(row)

    def _describe(self, row: int) -> None:
        host = self._hosts[row]
        self._row_of_node[host.compute_node_uuid] = row
        self._alive[row] = host.up
        self._forced_down[row] = host.forced_down
        self._disabled[row] = host.disabled
        self._zone_codes[row] = _code(self._zones, host.availability_zone)
        self._cell_codes[row] = _code(self._cells, host.cell_uuid)
        self._ties[row] = tie_of(host)

    def _drop_host(self, host_id: int) -> None:
        row = self._row_of_host.pop(host_id, None)
        if row is None:
            return
        self._own_hosts()
        self._names = None
        del self._row_of_node[self._hosts[row].compute_node_uuid]
        last = self._hosts.pop()
        if last.id != host_id:
            # The last row moves into the gap.
            self._hosts[row] = last
            self._row_of_host[last.id] = row
            self._describe(row)
            self._put_inventories(row)
        self._resize(len(self._hosts))

    def _own_hosts(self) -> None:
        if self._hosts_are_shared:
            self._hosts = list(self._hosts)
            self._hosts_are_shared = False

    def _resize(self, length: int) -> None:
        columns: list[Column[Any]] = [self._alive, self._forced_down, self._disabled, self._zone_codes]
        for column in (*columns, self._cell_codes, self._ties):
            column.resize(length)
        for inventory_columns in self._inventories.values():
            inventory_columns.resize(length)

    # --- Providers --------------------------------------------------------------------------------------------------

    def _put_provider(self, provider: Provider) -> None:
        self._unsure.discard(provider.id)
        self._providers[provider.id] = provider
        self._reading_of_provider[provider.id] = next(self._reading_numbers)
        self._provider_of_node[provider.uuid] = provider.id
        if (row := self._row_of_node.get(provider.uuid)) is not None:
            self._put_inventories(row)

    def _drop_provider(self, provider_id: int) -> None:
        provider = self._providers.pop(provider_id, None)
        if provider is None:
            return
        del self._reading_of_provider[provider_id]
        self._unsure.discard(provider_id)
        # Deleted and created anew, the same node has another id: only its own one is taken out.
        if self._provider_of_node.get(provider.uuid) == provider_id:
            del self._provider_of_node[provider.uuid]
            if (row := self._row_of_node.get(provider.uuid)) is not None:
                self._put_inventories(row)

    def _put_inventories(self, row: int) -> None:
        """Write the columns of a host from its provider as last read; from none, where there is none."""
        provider_id = self._provider_of_node.get(self._hosts[row].compute_node_uuid)
        inventories = {} if provider_id is None else self._providers[provider_id].inventories
        for name in inventories.keys() - self._inventories.keys():
            self._inventories[name] = _InventoryColumns(len(self._hosts))
        for name, columns in self._inventories.items():
            columns.put(row, inventories.get(name))


def tie_of(host: HostRow) -> int:
    """Return the number by which a host's ties are broken: the same in every scheduler, whatever was read first."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())


def _code(codes: dict[str, int], name: str) -> int:
    return codes.setdefault(name, len(codes))
