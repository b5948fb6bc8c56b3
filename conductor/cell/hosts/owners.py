"""The agent that each host of a cell belongs to: the one that has reported it last, as long as that agent is alive.

Two agents that report the same host are a mistake of the configuration. If the second one took the host over, builds
would go to either in turn, and the list of guests of one would count as proof that guests of the other are lost.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, and_, bindparam, exists, or_, select

from conductor.engine.rows import batches
from conductor.schema import cell_hosts
from moorage.db.columns import is_ahead, now

_HERE = cell_hosts.c.cell_uuid == bindparam("of_cell")

# The newest: the row of a node that only an earlier agent has described is not updated by heartbeats.
_AGENT = (
    select(cell_hosts.c.agent)
    .where(_HERE, cell_hosts.c.service_host == bindparam("of_host"))
    .order_by(cell_hosts.c.last_seen.desc())
    .limit(1)
)
_OWN = cell_hosts.alias("own")


def _is_alive(column: ColumnElement[float]) -> ColumnElement[bool]:
    # A node that only a former agent has described may have left a row. If this agent was heard when the other one had
    # been silent for too long, it has taken the host over.
    taken_over = exists().where(
        _OWN.c.cell_uuid == cell_hosts.c.cell_uuid,
        _OWN.c.service_host == cell_hosts.c.service_host,
        _OWN.c.agent == bindparam("of_agent"),
        _OWN.c.last_seen > column + bindparam("down_after"),
        ~is_ahead(_OWN.c.last_seen),
    )
    return and_(column >= now() - bindparam("silent_after"), ~is_ahead(column), ~taken_over)


# SELECT service_host, agent FROM cell_hosts WHERE cell_uuid = … AND service_host IN (…) AND agent != …
#    AND (last_seen >= :now - :silent_after AND last_seen is not ahead of the clock
#         AND NOT EXISTS (SELECT * FROM cell_hosts own WHERE … AND own.last_seen > last_seen + :down_after …)
#         OR the same for withheld_at)
_OF_OTHERS = select(cell_hosts.c.service_host, cell_hosts.c.agent).where(
    _HERE,
    cell_hosts.c.service_host.in_(bindparam("of_hosts", expanding=True)),
    cell_hosts.c.agent != bindparam("of_agent"),
    or_(_is_alive(cell_hosts.c.last_seen), _is_alive(cell_hosts.c.withheld_at)),
)

#: Seconds, longer than any host was silent: a hundred years.
_FOR_EVER = 3.2e9


def agent_of(connection: Connection, cell_uuid: str, service_host: str) -> str | None:
    """Return the agent of a host, or None for an unknown host."""
    agent: str | None = connection.scalar(_AGENT, {"of_cell": cell_uuid, "of_host": service_host})
    return agent


def of_others(
    connection: Connection,
    cell_uuid: str,
    agent: str,
    hosts: Collection[str],
    down_after: float,
    *,
    could_be_heard: bool,
) -> dict[str, str]:
    """Return those of some hosts that belong to other agents, each with its agent.

    :param down_after: the seconds without a heartbeat after which another agent may take a host over.
    :param could_be_heard: whether agents could send heartbeats for so long; otherwise none counts as silent.
    """
    found: dict[str, str] = {}
    for names in batches(sorted(hosts)):
        named = {
            "of_cell": cell_uuid,
            "of_hosts": names,
            "of_agent": agent,
            "down_after": down_after,
            "silent_after": down_after if could_be_heard else _FOR_EVER,
        }
        found |= {row.service_host: row.agent for row in connection.execute(_OF_OTHERS, named)}
    return found
