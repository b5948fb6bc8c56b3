"""Records of the order of an agent's messages: by incarnation of the agent, then by message number.

The current incarnation is the one whose first message came last. A message of an earlier incarnation changes nothing,
and neither does a message that arrives after a later one.
"""

import logging
from enum import Enum
from typing import Literal, get_args

from sqlalchemy import Connection, bindparam, exc, select

from conductor.schema import cell_agents
from moorage import errors
from moorage.messages import ReportHostsInCell, ReportProviderTree, ReshapeProviderTree

LOG = logging.getLogger(__name__)

#: The kinds of messages. Each kind has its own order, because a message may overtake a message of another kind.
Kind = Literal["described", "alive", "providers"]

#: The number of incarnations that are kept for an agent. A message of a deleted incarnation would count as the first
#: message of a new one, and fence off the current one. Arbitrary: an agent does not start so often while a message is
#: in flight.
_REMEMBERED = 16


# Built once: it takes SQLAlchemy longer to build a statement than to run it, and every agent reports every few seconds.
_OF_AGENT = (cell_agents.c.cell_uuid == bindparam("of_cell"), cell_agents.c.agent == bindparam("of_agent"))

# If two messages are concurrent, the second waits and sees the number of the first.
_LIVES = select(cell_agents).where(*_OF_AGENT).order_by(cell_agents.c.number.desc()).with_for_update()

_TAKE = {
    kind: cell_agents.update()
    .where(*_OF_AGENT, cell_agents.c.incarnation == bindparam("of_life"))
    .values({cell_agents.c[kind]: bindparam("taken")})
    for kind in get_args(Kind)
}


class MessagePlace(Enum):
    """The place of a message in the order of the messages that were carried out before."""

    NEXT = "next"
    #: A repetition of the last message, or an earlier message.
    LATE = "late"
    #: A message of an earlier incarnation than the current one.
    SUPERSEDED = "superseded"


def take(
    connection: Connection,
    cell_uuid: str,
    message: ReportHostsInCell | ReportProviderTree | ReshapeProviderTree,
    kind: Kind,
    *,
    repeatable: bool = False,
) -> MessagePlace:
    """Record a message, and return its place in the order. Agents of an earlier release do not number messages.

    :param repeatable: a repetition of the last message counts as the next one.
    :raises RequestInProgress: the first messages of two incarnations have arrived at the same moment.
    """
    agent, incarnation = message.agent, message.incarnation
    if incarnation is None:
        return MessagePlace.NEXT
    rows = connection.execute(_LIVES, {"of_cell": cell_uuid, "of_agent": agent}).all()
    known = next((row for row in rows if row.incarnation == incarnation), None)
    if known is None:
        _add(connection, cell_uuid, agent, incarnation, 1 + max((row.number for row in rows), default=0))
    elif known is not rows[0]:
        LOG.warning("A message of an earlier incarnation of agent %s is ignored", agent)
        return MessagePlace.SUPERSEDED
    elif message.number < getattr(known, kind) + (not repeatable):
        return MessagePlace.LATE
    taken = {"of_cell": cell_uuid, "of_agent": agent, "of_life": incarnation, "taken": message.number}
    connection.execute(_TAKE[kind], taken)
    return MessagePlace.NEXT


def _add(connection: Connection, cell_uuid: str, agent: str, incarnation: str, number: int) -> None:
    LOG.info("Agent %s has begun incarnation %d", agent, number)
    of_agent = (cell_agents.c.cell_uuid == cell_uuid, cell_agents.c.agent == agent)
    connection.execute(cell_agents.delete().where(*of_agent, cell_agents.c.number <= number - _REMEMBERED))
    new = {"cell_uuid": cell_uuid, "agent": agent, "number": number, "incarnation": incarnation}
    try:
        connection.execute(cell_agents.insert().values(**new, **dict.fromkeys(get_args(Kind), 0)))
    except exc.IntegrityError as fault:
        raise errors.RequestInProgress(request_id=incarnation) from fault
