"""Rename the records of nodes that their agents describe with new names after a start.

Otherwise the record with the former name would stay, and the schedulers could get that name again.
"""

from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import Connection, and_, select, update

from conductor.schema import cell_hosts
from moorage.model import HostReport


def follow(connection: Connection, cell_uuid: str, described: Sequence[HostReport], started: Collection[str]) -> None:
    """Rename the records of started hosts' nodes whose compute nodes are described with other names.

    A renamed record keeps its number, so that the new description is numbered after the former one. If there is a
    record with the new name already, the one with the former name is deleted, and the description counts as requested.
    """
    hosts = sorted({host.service_host for host in described}.intersection(started))
    if not hosts:
        return
    host, node = cell_hosts.c.service_host, cell_hosts.c.nodename
    query = select(host, node, cell_hosts.c.description)
    query = query.where(cell_hosts.c.cell_uuid == cell_uuid, host.in_(hosts)).order_by(host, node)
    found = {(row.service_host, row.nodename): row.description for row in connection.execute(query)}
    names = {(report.service_host, report.compute_node_uuid): report.nodename for report in described}
    # Nearly always there are none: the records with names that are described are not former ones.
    for former in found.keys() - {(report.service_host, report.nodename) for report in described}:
        name = names.get((former[0], msgspec.json.decode(found[former], type=HostReport).compute_node_uuid))
        if name is None:
            continue  # a further node of the host
        of_host = and_(cell_hosts.c.cell_uuid == cell_uuid, host == former[0])
        record = and_(of_host, node == former[1])
        if (former[0], name) in found:
            connection.execute(cell_hosts.delete().where(record))
            connection.execute(update(cell_hosts).where(of_host, node == name).values(undescribed=True))
        else:
            connection.execute(update(cell_hosts).where(record).values(nodename=name))
            found[former[0], name] = found[former]
