"""Compute the loads of a cell's hosts for the schedulers: operations in progress, failed builds, images."""

from collections import Counter
from collections.abc import Mapping

from oslo_config import cfg
from sqlalchemy import Connection, and_, func, select

from conductor.cell.hosts.image_counts import ImageCounts
from conductor.cell.records import failed_builds
from conductor.engine.steps import BUILD, MOVE, REBUILD, UNSHELVE
from conductor.schema import cell_hosts, cell_instances, cell_migrations, cell_operations
from moorage.db.columns import as_uuid, now
from moorage.db.database import Database
from moorage.model import HostLoad


class CellLoads:
    """Computes loads from the records of instances and operations; only failed builds have records of their own.

    Both methods raise ``StoreUnavailable`` if the records cannot be reached.
    """

    def __init__(self, conf: cfg.ConfigOpts, database: Database, cell_uuid: str) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._half_life: float = conf.conductor.failed_build_half_life
        self._images = ImageCounts(database, cell_uuid, conf.conductor.reported_image_properties)

    def now(self) -> tuple[Mapping[str, HostLoad], float] | None:
        """Return the current loads by host, without idle ones, and the time of the cell's database.

        Return None while images are still being counted for the first time.
        """
        images = self._images.now()
        if images is None:
            return None

        def work(connection: Connection) -> tuple[float, Mapping[str, int], Mapping[str, float], bool]:
            # Read the clock first: then the records are at least as new as the returned time.
            clock: float = connection.scalars(select(now())).one()
            return (
                clock,
                self._under_way(connection),
                *failed_builds.counts(connection, self._cell_uuid, self._half_life),
            )

        at, io_ops, failed, some_are_old = self._database.read(work)
        if some_are_old:
            self._database.write(
                lambda connection: failed_builds.forget_old(connection, self._cell_uuid, self._half_life)
            )
        loads = {
            host: HostLoad(
                io_ops=io_ops.get(host, 0),
                failed_builds=failed.get(host, 0.0),
                image_properties=dict(images.get(host, {})),
            )
            for host in {*io_ops, *failed, *images}
        }
        return loads, at

    def names(self) -> list[str]:
        """Return the names of all hosts of the cell."""
        query = select(cell_hosts.c.service_host).where(cell_hosts.c.cell_uuid == self._cell_uuid).distinct()
        return self._database.read(lambda connection: list(connection.scalars(query)))

    def _under_way(self, connection: Connection) -> Mapping[str, int]:
        """Return the number of instances that are being started, moved or rebuilt, by host, without zeros.

        A moving instance counts on both of its hosts (Nova: ``HostState.num_io_ops``).
        """
        # SELECT o.kind, i.host, m.source_host, m.destination_host, COUNT(*) FROM cell_operations o
        #   JOIN cell_instances i ON i.uuid = o.subject LEFT JOIN cell_migrations m ON m.uuid = i.migration_uuid
        #  WHERE o.state = 'pending' AND o.kind IN (...) GROUP BY ...
        operations, instances, migrations = cell_operations.c, cell_instances.c, cell_migrations.c
        columns = (operations.kind, instances.host, migrations.source_host, migrations.destination_host)
        instance = and_(instances.cell_uuid == operations.cell_uuid, instances.uuid == as_uuid(operations.subject))
        migration = and_(migrations.cell_uuid == operations.cell_uuid, migrations.uuid == instances.migration_uuid)
        rows = connection.execute(
            select(*columns, func.count().label("servers"))
            .select_from(cell_operations.join(cell_instances, instance).outerjoin(cell_migrations, migration))
            .where(
                operations.cell_uuid == self._cell_uuid,
                operations.state == "pending",
                operations.kind.in_((BUILD, MOVE, UNSHELVE, REBUILD)),
            )
            .group_by(*columns)
        )
        found: Counter[str] = Counter()
        for row in rows:
            hosts = {row.source_host, row.destination_host} if row.kind == MOVE else {row.host}
            for host in hosts - {None}:
                found[host] += row.servers
        return found
