"""What a conductor does from time to time, and nothing waits for."""

from collections.abc import Callable, Sequence

from conductor.engine.acknowledgements import Acknowledgements, settle
from conductor.engine.revoked_claims import RevokedClaims
from conductor.retention import EndedRecords
from conductor.super.deleted_instances import CellDeletedInstances, SuperDeletedInstances
from moorage import context
from moorage.db.database import Database
from moorage.service.process import Periodic
from moorage.service.stored_requests import Retention, StoredRequests

#: Seconds between two rounds of forgetting: what is kept for hours may be kept ten minutes more. Arbitrary.
_PRUNE_SECONDS = 600.0


class Housekeeping:
    """Acknowledges what is on record, forgets what has been kept long enough, and looks after what else there is.

    :param interval: seconds between two rounds of everything but forgetting.
    :param rounds: what else is done in each round, by its name in the log.
    """

    def __init__(
        self,
        acknowledgements: Acknowledgements,
        forget: Callable[[], None],
        interval: float,
        service: str | None,
        rounds: Sequence[tuple[str, Callable[[], None]]] = (),
    ) -> None:
        self._acknowledgements = acknowledgements
        self._service = service
        tasks = [("acknowledgements", acknowledgements.send, interval), ("pruning", forget, _PRUNE_SECONDS)]
        tasks += [(name, work, interval) for name, work in rounds]
        self._periodics = [Periodic(name, self._named(work), seconds) for name, work, seconds in tasks]

    def start(self) -> None:
        """Begin with a round of each."""
        for periodic in self._periodics:
            periodic.start()

    def stop(self) -> None:
        """End with the rounds under way, and acknowledge what is left."""
        for periodic in self._periodics:
            periodic.stop()
        settle(self._acknowledgements)

    def _named(self, work: Callable[[], None]) -> Callable[[], None]:
        def named() -> None:
            with context.bound(service=self._service):
                work()

        return named


def forgetting(
    database: Database,
    requests: StoredRequests,
    revoked_claims: RevokedClaims,
    ended: EndedRecords,
    deleted: CellDeletedInstances | SuperDeletedInstances,
    retention: Retention,
) -> Callable[[], None]:
    """Return what forgets the old answers, revoked claims, ended operations and deleted instances of one schema."""

    def forget() -> None:
        requests.prune(acknowledged=retention.acknowledged, unacknowledged=retention.unacknowledged)
        # As long as a tombstone: whatever names such a claim is refused for the same time.
        database.write(lambda connection: revoked_claims.forget(connection, retention.tombstones))
        ended.forget()
        # After the operations: an instance is kept as long as one of its own is.
        deleted.forget()

    return forget
