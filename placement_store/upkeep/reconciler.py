"""Reconcile claims: query the owners of claims that no host has accepted for a while, and release unwanted ones.

Age alone never releases a claim: only its owner's reply does, in a transaction that names the claim and fails once a
host has accepted it. Several placement roles may do this concurrently.
"""

import logging
import threading
import time
from functools import partial

from oslo_config import cfg
from sqlalchemy import Connection

from moorage import context, errors, ids, logs, metrics
from moorage.bus.bus import Bus
from moorage.messages import DeleteAllocations, OwnsClaim, Released
from moorage.service.pruning import in_parts
from placement_store.claims import delete as deletes
from placement_store.db.store import Store
from placement_store.upkeep import reconciler_log
from placement_store.upkeep.reconciler_log import KEPT, RELEASED, UNKNOWN, Doubtful

LOG = logging.getLogger(__name__)

#: The outcome, for metrics, of a claim that is no longer in doubt at the moment of its release.
_SETTLED = "settled"

#: Claims examined in one round; the next round begins with those that were examined longest ago.
_AT_ONCE = 200
#: This many calls in a row without a reply end a round: each of them may have taken the whole timeout.
_PATIENCE = 3
#: After these seconds a round begins no further claim: a cell whose database is silent takes seconds for each of its
#: claims.
_ROUND_SECONDS = 30.0
#: The fraction of an interval during which a claim that one role has examined is examined by no other role.
_LOOKED_AT = 0.5


class Reconciler:
    """Find claims in doubt, query their owners, and release the claims that the owners do not want."""

    def __init__(self, conf: cfg.ConfigOpts, bus: Bus, store: Store) -> None:
        self._older_than = conf.placement.reconcile_after
        self._not_since = conf.placement.reconcile_interval * _LOOKED_AT
        self._log_name = logs.service_name(conf)
        for outcome in (RELEASED, _SETTLED, KEPT, UNKNOWN):
            metrics.RECONCILER_ACTIONS.labels(outcome)
        self._bus = bus
        self._store = store
        self._ended = threading.Event()

    def end(self) -> None:
        """End the running round after its present claim."""
        self._ended.set()

    def round(self) -> None:
        """Examine the claims in doubt that were not examined recently.

        :raises StoreUnavailable: the database cannot be reached.
        """
        with context.bound(service=self._log_name):
            in_parts(lambda: self._store.database.write(reconciler_log.forget_settled))
            unanswered, until = 0, time.monotonic() + _ROUND_SECONDS
            count = partial(reconciler_log.unaccepted, older_than=self._older_than)
            metrics.CLAIMS_UNACCEPTED.set(self._store.read(count))
            find = partial(
                reconciler_log.doubtful, older_than=self._older_than, not_since=self._not_since, at_most=_AT_ONCE
            )
            for claim in self._store.read(find):
                if self._ended.is_set() or unanswered == _PATIENCE or time.monotonic() > until:
                    return
                request_id = ids.fresh()
                with context.bound(request_id=request_id):
                    unanswered = 0 if self._examine(claim, request_id) else unanswered + 1

    def _examine(self, claim: Doubtful, request_id: str) -> bool:
        """Query the owner of a claim and act on the reply; return whether the owner could be reached."""
        question = OwnsClaim(request_id=request_id, consumer_uuid=claim.consumer_uuid, claim_id=claim.claim_id)
        try:
            # Under a new request id each time: a stored reply would be out of date.
            reply = self._bus.client(claim.owner).call(question)
        except errors.MoorageError as fault:
            self._note(claim, UNKNOWN, str(fault))
            # If only the claim's cell is away, the owner has answered: claims of other cells must not wait.
            return isinstance(fault, errors.CellUnreachable) or not isinstance(fault, errors.Unavailable)
        if reply.owned:
            self._note(claim, KEPT, "its owner wants it")
        else:
            self._release(claim)
        return True

    def _release(self, claim: Doubtful) -> None:
        message = DeleteAllocations(
            # Not derived from the claim: a heal may have put it back after an earlier release, whose answer is stored.
            request_id=ids.fresh(),
            consumer_uuid=claim.consumer_uuid,
            claim_id=claim.claim_id,
            unaccepted=True,
        )

        def work(connection: Connection) -> Released:
            released = deletes.delete(connection, message, self._store.classes)
            reconciler_log.record(connection, claim, RELEASED, "its owner does not want it")
            return released

        try:
            self._store.once(message, work)
        except (errors.ClaimReleased, errors.ConsumerNotFound, errors.InvalidState) as fault:
            # Since it was found, its owner has released it or a host has accepted it: it is no longer in doubt.
            LOG.info("Claim %s of consumer %s is settled: %s", claim.claim_id, claim.consumer_uuid, fault)
            metrics.RECONCILER_ACTIONS.labels(_SETTLED).inc()
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            LOG.exception("Claim %s of consumer %s cannot be released", claim.claim_id, claim.consumer_uuid)
            # Recorded: a claim that was never examined comes first in each round, and this one would end every round.
            why = fault if isinstance(fault, errors.MoorageError) else type(fault).__name__
            self._note(claim, KEPT, f"its owner does not want it, but it cannot be released: {why}")
        else:
            metrics.RECONCILER_ACTIONS.labels(RELEASED).inc()
            LOG.warning(
                "Released claim %s of consumer %s, which no host has accepted in %.0f s and %s does not want",
                claim.claim_id,
                claim.consumer_uuid,
                claim.age,
                claim.owner,
            )

    def _note(self, claim: Doubtful, outcome: str, reason: str) -> None:
        metrics.RECONCILER_ACTIONS.labels(outcome).inc()
        # A finding that repeats round after round is logged once.
        level = logging.DEBUG
        work = partial(reconciler_log.record, claim=claim, outcome=outcome, reason=reason)
        if self._store.unstored(work):
            level = logging.WARNING if outcome == UNKNOWN else logging.INFO
        LOG.log(level, "Kept claim %s of consumer %s: %s", claim.claim_id, claim.consumer_uuid, reason)
