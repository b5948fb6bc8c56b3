"""Periodic tasks of a conductor that nothing waits for: acknowledge answers, prune records, poll the cells."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from oslo_config import cfg

from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.revoked_claims import RevokedClaims
from conductor.retention import CellDeletedInstances, EndedRecords, SuperDeletedInstances
from moorage import context, errors
from moorage.db.database import Database
from moorage.service.process import Periodic
from moorage.service.stored_requests import Retention, StoredRequests

LOG = logging.getLogger(__name__)

#: Seconds to wait for the placement role at the stop. Arbitrary: answers that are not acknowledged expire there by age.
_LAST_SECONDS = 1.0


class Housekeeping:
    """Acknowledges recorded answers, prunes old records, and runs the given tasks, each periodically in a thread."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        acknowledgements: Acknowledgements,
        prune: Callable[[], None],
        service: str | None,
        rounds: Sequence[tuple[str, Callable[[], None]]] = (),
    ) -> None:
        self._acknowledgements = acknowledgements
        self._service = service
        interval = conf.conductor.housekeeping_interval
        tasks = [("acknowledgements", acknowledgements.send, interval), ("pruning", prune, conf.service.prune_interval)]
        tasks += [(name, work, interval) for name, work in rounds]
        self._periodics = [Periodic(name, partial(self._round, work), seconds) for name, work, seconds in tasks]

    def start(self) -> None:
        """Start each task with its first round."""
        for periodic in self._periodics:
            periodic.start()

    def stop(self) -> None:
        """Finish the rounds in progress, then try once to send the remaining acknowledgements."""
        for periodic in self._periodics:
            periodic.stop()
        try:
            with context.bound(deadline=time.monotonic() + _LAST_SECONDS):
                self._acknowledgements.send()
        except errors.MoorageError as fault:
            LOG.info("Not acknowledged: %s", fault)

    def _round(self, work: Callable[[], None]) -> None:
        with context.bound(service=self._service):
            work()


def prune(
    database: Database,
    requests: StoredRequests,
    revoked_claims: RevokedClaims,
    ended: EndedRecords,
    deleted: CellDeletedInstances | SuperDeletedInstances,
    retention: Retention,
) -> None:
    """Prune old answers, revoked claims, ended operations and deleted instances of one schema."""
    requests.prune(acknowledged=retention.acknowledged, unacknowledged=retention.unacknowledged)
    # A revoked claim is kept as long as a tombstone: both refuse late messages that name it.
    revoked_claims.prune(database, retention.tombstones)
    ended.prune()
    # After the operations: an instance is kept as long as one of its operations is.
    deleted.prune()
