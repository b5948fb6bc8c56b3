"""Prune the records of hosts that have been silent for long, and of their agents.

The registry keeps such a host until an operator deletes it. If the host returns, its agent describes it as a new one.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, or_, select

from conductor.cell.records.attempts import HAS_ENDED, MAY_HAVE_A_GUEST
from conductor.schema import cell_agents, cell_attempts, cell_hosts, cell_instances
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.db.forced_index import has_row
from moorage.service.pruning import AT_ONCE, in_parts


def note_deleted(
    database: Database, cell_uuid: str, silent_for: float, deleted: Callable[[Sequence[str]], Collection[str]]
) -> None:
    """Record that the guests of ended attempts on deleted hosts are gone, so that their records can be pruned.

    Who deletes a host asserts that no guest runs there. If such a host returns after all, it lists its guests.

    :param silent_for: hosts that have been silent for more than so many seconds are considered.
    """
    after = ""
    while names := database.read(partial(_with_ended_guests, cell_uuid, silent_for, after)):
        after = names[-1]
        if gone := sorted(deleted(names)):
            database.write(partial(_note_gone, cell_uuid, silent_for, gone))


def _with_ended_guests(cell_uuid: str, silent_for: float, after: str, connection: Connection) -> Sequence[str]:
    """Return the next silent hosts that may have guests of ended attempts, in the order of their names."""
    # SELECT DISTINCT service_host FROM cell_hosts WHERE cell_uuid = ... AND service_host > :after AND it is silent
    #    AND an ended attempt may have a guest there ORDER BY service_host LIMIT :n
    host, attempt = cell_hosts.c, cell_attempts.c
    guest = select(attempt.attempt_id).where(attempt.cell_uuid == host.cell_uuid, attempt.host == host.service_host)
    query = select(host.service_host).where(
        host.cell_uuid == cell_uuid,
        host.service_host > after,
        ~_was_heard(host, silent_for),
        has_row(guest.where(MAY_HAVE_A_GUEST, HAS_ENDED)),
    )
    return connection.scalars(query.distinct().order_by(host.service_host).limit(AT_ONCE)).all()


def _note_gone(cell_uuid: str, silent_for: float, hosts: Collection[str], connection: Connection) -> None:
    # Compare again, with a lock: a host may have been heard since.
    host, attempt = cell_hosts.c, cell_attempts.c
    locked = select(host.service_host, _was_heard(host, silent_for).label("was_heard"))
    rows = connection.execute(
        locked.where(host.cell_uuid == cell_uuid, host.service_host.in_(hosts)).with_for_update()
    ).all()
    silent = sorted(set(hosts) - {row.service_host for row in rows if row.was_heard})
    there = (attempt.cell_uuid == cell_uuid, attempt.host.in_(silent), MAY_HAVE_A_GUEST, HAS_ENDED)
    connection.execute(cell_attempts.update().where(*there).values(guest_gone=True))


def prune(database: Database, cell_uuid: str, silent_for: float) -> int:
    """Delete the hosts of a cell that have been silent for more than so many seconds; return their number.

    A host of an instance is kept, and so is one that may have a guest: when it returns, it is compared with the record.
    """
    return in_parts(lambda: database.write(lambda connection: _prune_some(connection, cell_uuid, silent_for)), AT_ONCE)


def _prune_some(connection: Connection, cell_uuid: str, silent_for: float) -> int:
    host, agent = cell_hosts.c, cell_agents.c
    found = connection.execute(_unused(cell_uuid, silent_for)).all()
    if not found:
        return 0
    names, agents = sorted({row.service_host for row in found}), sorted({row.agent for row in found})
    # Lock the agents first, as their reports do: then none of them reports its hosts meanwhile.
    of_these = (agent.cell_uuid == cell_uuid, agent.agent.in_(agents))
    connection.execute(select(agent.number).where(*of_these).with_for_update()).all()
    # Compare again: a host may have been heard since. All its nodes go at once: its life is the greatest of theirs.
    here = host.cell_uuid == cell_uuid
    locked = select(host.service_host, _was_heard(host, silent_for).label("was_heard"))
    rows = connection.execute(locked.where(here, host.service_host.in_(names)).with_for_update()).all()
    retired = sorted(set(names) - {row.service_host for row in rows if row.was_heard})
    connection.execute(cell_hosts.delete().where(here, host.service_host.in_(retired)))
    with_hosts = set(connection.scalars(select(host.agent).where(here, host.agent.in_(agents)).distinct()))
    without = sorted(set(agents) - with_hosts)
    connection.execute(cell_agents.delete().where(agent.cell_uuid == cell_uuid, agent.agent.in_(without)))
    return len(retired)


def _unused(cell_uuid: str, silent_for: float) -> Select[tuple[str, str]]:
    """Return the query for silent hosts that neither an instance nor a guest is on, each with its agents."""
    # SELECT DISTINCT service_host, agent FROM cell_hosts WHERE cell_uuid = ... AND it is silent
    #    AND no other node of the host was heard AND no instance is there AND no attempt may have a guest there LIMIT :n
    host, other, instance, attempt = cell_hosts.c, cell_hosts.alias("other").c, cell_instances.c, cell_attempts.c
    node = select(other.nodename).where(other.cell_uuid == host.cell_uuid, other.service_host == host.service_host)
    its_own = select(instance.uuid).where(instance.cell_uuid == host.cell_uuid, instance.host == host.service_host)
    guest = select(attempt.attempt_id).where(attempt.cell_uuid == host.cell_uuid, attempt.host == host.service_host)
    query = select(host.service_host, host.agent).where(
        host.cell_uuid == cell_uuid,
        ~_was_heard(host, silent_for),
        ~has_row(node.where(_was_heard(other, silent_for))),
        ~has_row(its_own),
        ~has_row(guest.where(MAY_HAVE_A_GUEST)),
    )
    return query.distinct().limit(AT_ONCE)


def _was_heard(host: Any, silent_for: float) -> ColumnElement[bool]:
    # An agent that withholds a host is alive.
    since = now() - silent_for
    return or_(host.last_seen >= since, func.coalesce(host.withheld_at, 0.0) >= since)
