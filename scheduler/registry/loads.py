"""What a cell says of what goes on on its hosts, written into the registry where it is news."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, or_, select

from moorage.db.columns import now
from moorage.model import HostLoad
from placement_store.cells import CLOCK_SET_BACK
from placement_store.db import change_feed
from placement_store.schema import hosts
from scheduler.registry.hosts import chunks

# UPDATE hosts SET io_ops = ..., failed_builds = ..., image_properties = ..., load_at = :at, seq = seq + 1, ...
#  WHERE id = ... AND (load_at <= :at OR load_at > :at + 60)
_LOAD = (
    hosts.update()
    .where(
        hosts.c.id == bindparam("row_id"),
        or_(hosts.c.load_at <= bindparam("seen_at"), hosts.c.load_at > bindparam("seen_at") + CLOCK_SET_BACK),
    )
    .values(
        io_ops=bindparam("new_io_ops"),
        failed_builds=bindparam("new_failed_builds"),
        image_properties=bindparam("new_image_properties"),
        load_at=bindparam("seen_at"),
        seq=hosts.c.seq + 1,
        updated_at=now(),
    )
)
_COLUMNS = [hosts.c[name] for name in ("id", "service_host", "io_ops", "failed_builds", "image_properties", "load_at")]


def write(connection: Connection, cell_uuid: str, loads: Mapping[str, HostLoad], at: float) -> None:
    """Write the loads of hosts of a cell that are others than are known, unless what is known is of a later moment.

    A host that is not known is left out: once it is described, its cell tells of it again.

    :param loads: by service host.
    :param at: when the cell saw them so, by its own database's clock.
    """
    changed: list[dict[str, Any]] = []
    for chunk in chunks(sorted(loads)):
        query = select(*_COLUMNS).where(hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(chunk))
        for row in connection.execute(query):
            load = loads[row.service_host]
            is_late = at < row.load_at <= at + CLOCK_SET_BACK
            if not is_late and _stored(load) != _known(row):
                io_ops, failed_builds, image_properties = _stored(load)
                changed.append(
                    {
                        "row_id": row.id,
                        "seen_at": at,
                        "new_io_ops": io_ops,
                        "new_failed_builds": failed_builds,
                        "new_image_properties": image_properties,
                    }
                )
    if not changed:
        return
    changed.sort(key=lambda one: int(one["row_id"]))
    connection.execute(_LOAD, changed)
    change_feed.record(connection, host_ids=[one["row_id"] for one in changed])


_Stored = tuple[int, float, bytes | None]


def _stored(load: HostLoad) -> _Stored:
    properties = msgspec.json.encode(load.image_properties, order="sorted") if load.image_properties else None
    return load.io_ops, load.failed_builds, properties


def _known(row: Row[Any]) -> _Stored:
    return row.io_ops, row.failed_builds, row.image_properties
