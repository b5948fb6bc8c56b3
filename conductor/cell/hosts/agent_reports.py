"""The order of an agent's messages: by incarnations of the agent, and by numbers within each.

The incarnation that is heard of last is the present one. A message of an earlier one, or one that comes after its
successor, changes nothing.
"""

import logging
from enum import Enum
from typing import Literal

from sqlalchemy import ColumnElement, Connection, exc, select

from conductor.schema import cell_agents
from moorage import errors

LOG = logging.getLogger(__name__)

#: The messages that are numbered together: descriptions, heartbeats and provider trees overtake each other freely.
Kind = Literal["described", "alive", "providers"]

#: Incarnations of an agent that are remembered. A message of one that is forgotten would count as that of a new one,
#: and the present one would begin anew. Arbitrary: an agent does not start so often while a message is under way.
_REMEMBERED = 16


class Order(Enum):
    """How a message stands to those that were carried out before."""

    NEXT = "next"
    #: It is the last one once more, or an earlier one.
    LATE = "late"
    #: Another incarnation has been heard of since.
    SUPERSEDED = "superseded"


class AgentReports:
    """The records of a cell's agents; each method is a part of the transaction that it is given."""

    def __init__(self, cell_uuid: str) -> None:
        self._cell_uuid = cell_uuid

    def take(
        self,
        connection: Connection,
        agent: str,
        incarnation: str | None,
        number: int,
        kind: Kind,
        *,
        repeatable: bool = False,
    ) -> Order:
        """Record a message, and return how it stands to the others. Those of a former release are not numbered.

        :param repeatable: whether the last one once more counts as the next.
        :raises RequestInProgress: two incarnations are heard of for the first time at this very moment.
        """
        if incarnation is None:
            return Order.NEXT
        rows = connection.execute(
            select(cell_agents)
            .where(self._of(agent))
            .order_by(cell_agents.c.number.desc())
            # Whoever comes second sees the number of the first.
            .with_for_update()
        ).all()
        known = next((row for row in rows if row.incarnation == incarnation), None)
        if known is None:
            self._add(connection, agent, incarnation, 1 + max((row.number for row in rows), default=0))
        elif known is not rows[0]:
            LOG.warning("A message of an earlier life of agent %s is left aside", agent)
            return Order.SUPERSEDED
        elif number < getattr(known, kind) + (not repeatable):
            return Order.LATE
        connection.execute(
            cell_agents.update()
            .where(self._of(agent), cell_agents.c.incarnation == incarnation)
            .values({cell_agents.c[kind]: number})
        )
        return Order.NEXT

    def _add(self, connection: Connection, agent: str, incarnation: str, number: int) -> None:
        LOG.info("Agent %s has begun a life, the %d. that is known of", agent, number)
        connection.execute(cell_agents.delete().where(self._of(agent), cell_agents.c.number <= number - _REMEMBERED))
        try:
            connection.execute(
                cell_agents.insert().values(
                    cell_uuid=self._cell_uuid,
                    agent=agent,
                    number=number,
                    incarnation=incarnation,
                    described=0,
                    alive=0,
                    providers=0,
                )
            )
        except exc.IntegrityError as fault:
            raise errors.RequestInProgress(request_id=incarnation) from fault

    def _of(self, agent: str) -> ColumnElement[bool]:
        return (cell_agents.c.cell_uuid == self._cell_uuid) & (cell_agents.c.agent == agent)
