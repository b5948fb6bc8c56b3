"""The reconciler: asks the owners of claims that no host has accepted for a while whether they still want them.

Nothing is released for its age alone, only upon the owner's word, and by a transaction that names the claim and holds
only while nobody has accepted it. Several placement roles may do this at once.
"""

import logging
import threading
from functools import partial

from oslo_config import cfg
from sqlalchemy import Connection

from moorage import context, errors, ids, logs
from moorage.bus.bus import Bus
from moorage.db.database import Database
from moorage.messages import DeleteAllocations, OwnsClaim, Released
from moorage.service.stored_requests import StoredRequests
from placement_store.claims import delete as deletes
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import retry_on_stale_read
from placement_store.schema import requests
from placement_store.upkeep import reconciler_log
from placement_store.upkeep.reconciler_log import KEPT, RELEASED, UNKNOWN, Doubtful

LOG = logging.getLogger(__name__)

#: Claims asked after in one round; the next round begins with those that have waited longest.
_AT_ONCE = 200
#: So many in a row that cannot be asked after end a round: each of them may have taken a call's whole time.
_PATIENCE = 3
#: Where several roles reconcile, a claim that one of them has looked at is left alone for this part of an interval.
_LOOKED_AT = 0.5


class Reconciler:
    """Looks for claims that nobody may want, and releases those of which the owner says so."""

    def __init__(self, conf: cfg.ConfigOpts, bus: Bus, database: Database, names: ResourceClassNames) -> None:
        self._older_than = conf.placement.reconcile_after
        self._not_since = conf.placement.reconcile_interval * _LOOKED_AT
        self._log_name = logs.service_name(conf)
        self._bus = bus
        self._database = database
        self._names = names
        self._requests = StoredRequests(database, requests)
        self._ended = threading.Event()

    def end(self) -> None:
        """Let the round under way be over after the claim it is at."""
        self._ended.set()

    def round(self) -> None:
        """Ask after each claim that is due.

        :raises StoreUnavailable: the database cannot be reached.
        """
        with context.bound(service=self._log_name):
            self._database.write(reconciler_log.forget_settled)
            unanswered = 0
            for claim in self._due():
                if self._ended.is_set() or unanswered == _PATIENCE:
                    return
                request_id = ids.fresh()
                with context.bound(request_id=request_id):
                    unanswered = 0 if self._look_at(claim, request_id) else unanswered + 1

    def _due(self) -> list[Doubtful]:
        find = partial(
            reconciler_log.doubtful, older_than=self._older_than, not_since=self._not_since, at_most=_AT_ONCE
        )
        return list(self._database.read(find))

    def _look_at(self, claim: Doubtful, request_id: str) -> bool:
        """Ask after one claim and act upon the answer; return whether there was one."""
        question = OwnsClaim(request_id=request_id, consumer_uuid=claim.consumer_uuid, claim_id=claim.claim_id)
        try:
            # A question of its own each time: a stored "mine" says nothing of today.
            answer = self._bus.client(claim.owner).call(question)
        except errors.MoorageError as fault:
            self._note(claim, UNKNOWN, str(fault))
            return not isinstance(fault, errors.Unavailable)
        if answer.owned:
            self._note(claim, KEPT, "its owner wants it")
        else:
            self._release(claim)
        return True

    def _release(self, claim: Doubtful) -> None:
        message = DeleteAllocations(
            request_id=ids.derived(claim.claim_id, "reconciled"),
            consumer_uuid=claim.consumer_uuid,
            claim_id=claim.claim_id,
            unaccepted=True,
        )

        def work(connection: Connection) -> Released:
            released = deletes.delete(connection, message, self._names)
            reconciler_log.record(connection, claim, RELEASED, "its owner does not want it")
            return released

        try:
            retry_on_stale_read(lambda: self._requests.once(message, work))
        except (errors.ClaimReleased, errors.ConsumerNotFound, errors.InvalidState) as fault:
            # Released by its owner, or accepted by a host, since it was found: it is in no doubt any more.
            LOG.info("Claim %s of consumer %s is settled: %s", claim.claim_id, claim.consumer_uuid, fault)
        else:
            LOG.warning(
                "Released claim %s of consumer %s, which no host has accepted in %.0f s and %s does not want",
                claim.claim_id,
                claim.consumer_uuid,
                claim.age,
                claim.owner,
            )

    def _note(self, claim: Doubtful, outcome: str, reason: str) -> None:
        def work(connection: Connection) -> bool:
            return reconciler_log.record(connection, claim, outcome, reason)

        # The same finding, round after round, is told once.
        level = logging.DEBUG
        if retry_on_stale_read(lambda: self._database.write(work)):
            level = logging.WARNING if outcome == UNKNOWN else logging.INFO
        LOG.log(level, "Kept claim %s of consumer %s: %s", claim.claim_id, claim.consumer_uuid, reason)
