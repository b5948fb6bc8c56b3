"""Hosts that their operator has declared down: nobody need wait for a word of theirs."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from placement_store.schema import hosts


def among(
    connection: Connection, cell_uuid: str, service_hosts: Sequence[str], *, or_disabled: bool = False
) -> list[str]:
    """Return those of these hosts of a cell whose nodes are all forced down, or deleted; or disabled, if that counts.

    Who deletes a host says even more than who forces it down; one that reports itself afterwards is a new one.
    """
    # SELECT DISTINCT service_host FROM hosts WHERE cell_uuid = :cell AND service_host IN (...) AND NOT forced_down
    query = select(hosts.c.service_host).where(
        hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(service_hosts), hosts.c.forced_down.is_(False)
    )
    if or_disabled:
        query = query.where(hosts.c.disabled.is_(False))
    awaited = set(connection.scalars(query.distinct()))
    return [name for name in service_hosts if name not in awaited]
