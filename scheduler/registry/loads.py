"""Write the loads that a cell reports of its hosts into the registry, if they have changed."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, or_, select

from moorage.db.columns import CLOCK_SET_BACK, now
from moorage.model import HostLoad
from placement_store.db import bulk, change_feed
from placement_store.schema import hosts

#: The columns of a host's load.
_LOADED = ("io_ops", "failed_builds", "image_properties")
# UPDATE hosts SET io_ops = ..., failed_builds = ..., image_properties = ..., load_at = :at, seq = seq + 1, ...
#  WHERE id = ... AND (load_at <= :at OR load_at > :at + 60)
_LOAD = (
    hosts.update()
    .where(
        hosts.c.id == bindparam("row_id"),
        or_(hosts.c.load_at <= bindparam("seen_at"), hosts.c.load_at > bindparam("seen_at") + CLOCK_SET_BACK),
    )
    .values(
        **{name: bindparam(f"new_{name}") for name in _LOADED},
        load_at=bindparam("seen_at"),
        seq=hosts.c.seq + 1,
        updated_at=now(),
    )
)
_COLUMNS = [hosts.c[name] for name in ("id", "service_host", "load_at", *_LOADED)]


def write(connection: Connection, cell_uuid: str, loads: Mapping[str, HostLoad], at: float) -> None:
    """Write the loads that differ from the registered ones, unless the registered ones are newer.

    A host that is not registered is left out: its cell reports the load again after the host's description.

    :param loads: by service host.
    :param at: the time of the loads, by the clock of the cell's database, in seconds.
    """
    changed: list[dict[str, Any]] = []
    for chunk in bulk.chunks(sorted(loads)):
        query = select(*_COLUMNS).where(hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(chunk))
        for row in connection.execute(query):
            # MySQL ignores trailing blanks in comparisons, and finds another host than was named.
            if (load := loads.get(row.service_host)) is None:
                continue
            properties = msgspec.json.encode(load.image_properties, order="sorted") if load.image_properties else None
            new = {"io_ops": load.io_ops, "failed_builds": load.failed_builds, "image_properties": properties}
            # If the registered load is of a much later time, the cell's clock was set back: then write the new one.
            is_late = at < row.load_at <= at + CLOCK_SET_BACK
            if not is_late and new != {name: getattr(row, name) for name in _LOADED}:
                changed.append({"row_id": row.id, "seen_at": at, **{f"new_{name}": new[name] for name in _LOADED}})
    if not changed:
        return
    # Lock order: rows by id.
    changed.sort(key=lambda one: int(one["row_id"]))
    connection.execute(_LOAD, changed)
    change_feed.record(connection, host_ids=[one["row_id"] for one in changed])
