"""Send orders to existing guests (stop, start, rebuild), and decide which failures are final."""

import logging

from oslo_config import cfg

from conductor.cell.agents import CellAgents, GuestOrder
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.steps import UNDECIDED, Operation
from moorage import context, errors

LOG = logging.getLogger(__name__)


class CellGuests:
    """Sends orders to the guests of a cell's hosts."""

    def __init__(self, conf: cfg.ConfigOpts, agents: CellAgents) -> None:
        self._retries: int = conf.conductor.max_unanswered_retries
        self._agents = agents

    def why_silent(self, attempt: AttemptRecord) -> str | None:
        """Return the reason if the host of an attempt is silent: then nobody knows when it would answer."""
        return self._agents.why_silent(attempt.host)

    def order(self, operation: Operation, attempt: AttemptRecord, message: GuestOrder) -> str | None:
        """Carry out an order to an attempt's guest; return the reason if that is refused for good, else nothing.

        :raises MoorageError: the order may still succeed: repeat the same one.
        """
        with context.bound(attempt_id=attempt.attempt_id):
            try:
                self._agents.order(attempt.agent, message)
            except errors.MoorageError as fault:
                if isinstance(fault, UNDECIDED):
                    raise
                # An action that failed may succeed another time. A refusal, of a missing guest for instance, is final.
                if isinstance(fault, errors.GuestActionFailed) and operation.tries < self._retries:
                    raise
                LOG.warning("It cannot be done to the guest of %s on %s: %s", operation.subject, attempt.host, fault)
                return str(fault)
        return None
