"""What a cell has done to guests that are there: stopped, started, rebuilt; and how long it asks for that."""

import logging

from oslo_config import cfg

from conductor.cell.agents import CellAgents, GuestOrder
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.steps import Operation
from moorage import context, errors

LOG = logging.getLogger(__name__)

#: Whether it was done is not known, or it is to be asked for again.
_UNDECIDED = (errors.Unavailable, errors.TryAgain, errors.InternalError)


class CellGuests:
    """The orders to guests of a cell's hosts."""

    def __init__(self, conf: cfg.ConfigOpts, agents: CellAgents) -> None:
        self._retries: int = conf.conductor.max_unanswered_retries
        self._agents = agents

    def why_silent(self, attempt: AttemptRecord) -> str | None:
        """Return since when a host is missed; of one that is, nobody knows when it will answer."""
        return self._agents.why_silent(attempt.host)

    def order(self, operation: Operation, attempt: AttemptRecord, message: GuestOrder) -> str | None:
        """Have something done to an attempt's guest; return why it cannot be done, or nothing when it is.

        :raises MoorageError: it may be done yet: the same order is to be repeated.
        """
        with context.bound(attempt_id=attempt.attempt_id):
            try:
                self._agents.order(attempt.agent, message)
            except errors.MoorageError as fault:
                if isinstance(fault, _UNDECIDED):
                    raise
                # What has failed once may succeed another time. What is refused, a guest that is not there for
                # instance, is refused for good.
                if isinstance(fault, errors.GuestActionFailed) and operation.tries < self._retries:
                    raise
                LOG.warning("It cannot be done to the guest of %s on %s: %s", operation.subject, attempt.host, fault)
                return str(fault)
        return None
