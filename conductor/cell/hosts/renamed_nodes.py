"""Rename the records of nodes that their agents describe with new names after a start.

Otherwise the record with the former name would stay, and the schedulers could get that name again.
"""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, case, select, tuple_, update

from conductor.engine.rows import grouped
from conductor.schema import cell_hosts
from moorage.model import HostReport


class _RecordedNode(msgspec.Struct):
    """The part of a recorded description that identifies its node; the rest need not be decoded."""

    compute_node_uuid: str


def follow(connection: Connection, cell_uuid: str, described: Sequence[HostReport], started: Collection[str]) -> int:
    """Rename the records of started hosts' nodes whose compute nodes are described with other names.

    A name may pass from one node to another. A renamed record does not get a smaller number, so that the new
    description is numbered after the former one. If a record that keeps its name has the new name, the one with the
    former name is deleted, and the description counts as requested. The life of a host never falls.
    """
    nodes = grouped((report.service_host, report.nodename) for report in described if report.service_host in started)
    if not nodes:
        return 0
    host, node, here = cell_hosts.c.service_host, cell_hosts.c.nodename, cell_hosts.c.cell_uuid == cell_uuid
    recorded = grouped(connection.execute(select(host, node).where(here, host.in_(sorted(nodes)))))
    # Nearly every host has one node, which is described with its recorded name: do not read these descriptions.
    unclear = sorted(name for name, known in recorded.items() if len(known) > 1 or known != nodes[name])
    if not unclear:
        return 0
    names = {(report.service_host, report.compute_node_uuid): report.nodename for report in described}
    query = select(host, node, cell_hosts.c.description).where(here, host.in_(unclear))
    held: set[tuple[str, str]] = set()
    renamed: dict[tuple[str, str], str] = {}
    for service_host, former, description in connection.execute(query):
        uuid = msgspec.json.decode(description, type=_RecordedNode).compute_node_uuid
        name = names.get((service_host, uuid), former)
        if name == former:
            held.add((service_host, former))
        else:
            renamed[service_host, former] = name
    if not renamed:
        return 0
    these = (here, host.in_(unclear), tuple_(host, node).in_(list(renamed)))
    rows = connection.execute(select(cell_hosts).where(*these).order_by(host, node).with_for_update()).all()
    connection.execute(cell_hosts.delete().where(*these))
    # No number that a record with one of these names had is used again: its acknowledgement may be under way.
    number = max((row.description_number for row in rows), default=0)
    lives: dict[str, int] = {}
    for row in rows:
        lives[row.service_host] = max(lives.get(row.service_host, 0), row.life)
    moved: list[dict[str, Any]] = []
    for row in rows:
        name, life = renamed[row.service_host, row.nodename], lives[row.service_host]
        if (row.service_host, name) in held:
            taken = (here, host == row.service_host, node == name)
            least = case((cell_hosts.c.life < life, life), else_=cell_hosts.c.life)
            connection.execute(update(cell_hosts).where(*taken).values(undescribed=True, life=least))
        else:
            held.add((row.service_host, name))
            moved.append(row._asdict() | {"nodename": name, "description_number": number, "life": life})
    if moved:
        connection.execute(cell_hosts.insert(), moved)
    return number
