"""One host: its provider tree with inventories and usage, and the consumers that hold something there."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from moorage import errors
from moorage.cli import lists
from moorage.cli.lists import MessageClient
from moorage.messages import ListProviderAllocations, ListProviderTrees
from moorage.model import ResourceProvider
from scheduler.registry.hosts import HostRow
from scheduler.view.snapshot import Snapshot

#: The maximum number of attributes that are shown of a host: a driver may report many.
_ATTRIBUTES = 200


def find(snapshot: Snapshot, service_host: str, nodename: str | None, cell_uuid: str | None) -> HostRow:
    """Return the host with a name; if several nodes or cells have one of that name, the first match.

    :raises HostNotFound: no host matches.
    """
    for row in snapshot.names.by_host.get(service_host.casefold(), ()):
        host = snapshot.hosts[row]
        if nodename in (None, host.nodename) and cell_uuid in (None, host.cell_uuid):
            return host
    raise errors.HostNotFound(name=service_host)


def read(placement: MessageClient, host: HostRow) -> dict[str, Any]:
    """Return a host with its providers and their consumers.

    :raises StoreUnavailable: the database cannot be reached.
    """
    providers = placement.call(ListProviderTrees(uuids=(host.compute_node_uuid,)))
    held = _held(placement, providers)
    return {
        "host": host.service_host,
        "node": host.nodename,
        "uuid": host.compute_node_uuid,
        "cell_uuid": host.cell_uuid,
        "agent": host.agent,
        "zone": host.availability_zone,
        "up": host.up,
        "disabled": host.disabled,
        "forced_down": host.forced_down,
        "io_ops": host.io_ops,
        "failed_builds": host.failed_builds,
        "metadata": {key: sorted(values) for key, values in sorted(host.metadata.items())},
        "attributes": {key: str(value) for key, value in sorted(host.attributes.items())[:_ATTRIBUTES]},
        "providers": [_provider(one) for one in providers],
        "consumers": _consumers(placement, held),
    }


def _held(placement: MessageClient, providers: Sequence[ResourceProvider]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the amounts that each consumer holds, by provider and resource class."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for provider in providers:
        if not any(provider.used.values()):
            continue
        try:
            consumers = lists.provider_allocations(placement, ListProviderAllocations(uuid=provider.uuid))
        except errors.ProviderNotFound:
            # The provider was deleted in the meantime.
            continue
        for uuid, hold in consumers.items():
            found.setdefault(uuid, {})[provider.uuid] = hold.resources
    return found


def _consumers(placement: MessageClient, held: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    claims = {one.consumer_uuid: one for one in lists.claims_of(placement, held)}
    return [{"uuid": uuid, "held": held[uuid], "claim": msgspec.to_builtins(claims.get(uuid))} for uuid in sorted(held)]


def _provider(provider: ResourceProvider) -> dict[str, Any]:
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "parent": provider.parent_provider_uuid,
        "generation": provider.generation,
        "traits": provider.traits,
        "aggregates": provider.aggregates,
        "inventories": {
            name: {
                "total": one.total,
                "reserved": one.reserved,
                "ratio": one.allocation_ratio,
                "capacity": one.capacity,
                "used": provider.used.get(name, 0),
            }
            for name, one in provider.inventories.items()
        },
    }
