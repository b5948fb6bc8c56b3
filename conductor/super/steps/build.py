"""How the super conductor builds: ask the scheduler, hand over to the cells, and release what must not stay held."""

import logging
from collections.abc import Collection, Sequence
from functools import partial

from msgspec import field, structs
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine import conflict_policy
from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.bulkheads import Postponed
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import BUILD, Again, Backoff, CommitStep, Ended, Next, Operation, Outcome, Step
from conductor.super.cell_clients import Cells, at_once
from conductor.super.held_consumers import HeldConsumers, on_node
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.db.database import Database
from moorage.messages import MAX_SELECTIONS, BuildInCell, DeleteAllocations, InstanceBuild, SelectDestinations
from moorage.model import Generation, Name, RequestSpec, Selection, Uuid, Value

LOG = logging.getLogger(__name__)

#: Answers from which it cannot be told whether the scheduler has claimed, or will yet.
_UNDECIDED = (errors.Unavailable, errors.RequestInProgress, errors.InternalError)

#: How often a request is tried that was answered by these: four minutes with the default back-off. Arbitrary: longer
#: than a database or a broker takes to fail over, and than one scheduler of two without its database is met in a row.
_AWAY, _TRIES_WHILE_AWAY = (errors.StoreUnavailable, errors.BusUnavailable), 10

#: Between two requests to the scheduler after losing to other claims: long enough for those to be seen by its view.
_CONTENTION = Backoff(first=0.1, longest=2.0)


class Asking(Value, frozen=True, kw_only=True):
    """Step `select`: the request to the scheduler, told apart from earlier ones of this operation by its number."""

    number: int
    instance_uuids: tuple[str, ...]
    #: How many requests before this one have lost to others.
    lost: int = 0
    #: A request of this operation may have been sent without being answered: it may claim yet.
    doubtful: bool = False
    #: The generations of those consumers that exist: what they hold stays, and the claim is added.
    generations: dict[Uuid, Generation] = field(default_factory=dict)
    #: How many requests before this one have met a consumer at another generation.
    conflicts: int = 0
    #: How many alternates each request asks for: as many as were configured when the build was ordered, so that a
    #: repeated request has the same content. Null in the records of earlier versions.
    num_alternates: int | None = None
    #: The node on which an instance holds something already: it can be placed nowhere else.
    node: Name | None = None


class HandingOver(Value, frozen=True, kw_only=True):
    """Step `hand_over`, and which instances are to be released after it."""

    release: tuple[str, ...] = ()
    reason: str | None = None


class SuperBuilds:
    """The steps of a build."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        revoked_claims: RevokedClaims,
        scheduler: AcknowledgingClient,
        placement: AcknowledgingClient,
        cells: Cells,
    ) -> None:
        self._conf = conf.conductor
        self._held = HeldConsumers(placement)
        self._revoked_claims = revoked_claims
        self._database = database
        self._scheduler = scheduler
        self._placement = placement
        self._cells = cells

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {
            (BUILD, "select"): self.select,
            (BUILD, "hand_over"): self.hand_over,
            (BUILD, "release"): self.release,
        }

    def asking(self, instance_uuids: tuple[str, ...]) -> Asking:
        """Return the payload of the first step.

        :raises InvalidRequest: more hosts would be asked for than one answer can name.
        """
        attempts: int = self._conf.max_attempts
        hosts = len(instance_uuids) * attempts
        if hosts > MAX_SELECTIONS:
            raise errors.InvalidRequest(
                path="$.instance_uuids",
                reason=f"{len(instance_uuids)} instances with {attempts} attempts each ([conductor] max_attempts) need "
                f"{hosts} hosts, and one request may need {MAX_SELECTIONS}: order at most "
                f"{MAX_SELECTIONS // attempts} instances at once",
            )
        return Asking(number=1, instance_uuids=instance_uuids, num_alternates=attempts - 1)

    # --- select -------------------------------------------------------------------------------------------------------

    def select(self, operation: Operation) -> CommitStep:
        """Ask the scheduler for a claimed host for each instance."""
        asking = operation.read(Asking)
        spec = self._database.read(lambda connection: super_records.spec_of(connection, operation.uuid))
        alternates = self._conf.max_attempts - 1 if asking.num_alternates is None else asking.num_alternates
        message = SelectDestinations(
            request_id=operation.derived("select", asking.number),
            request_spec=on_node(spec, asking.node),
            instance_uuids=asking.instance_uuids,
            num_alternates=alternates,
            owner="conductor",
            consumer_generations=asking.generations,
            keep_held=bool(asking.generations),
        )
        try:
            answer = self._scheduler.call(message)
        except errors.ConsumerGenerationConflict as conflict:
            if conflict_policy.is_placed(conflict):
                return self._on_its_node(operation, asking, spec, conflict)
            return self._not_selected(operation, asking, conflict)
        except errors.MoorageError as fault:
            return self._not_selected(operation, asking, fault)
        for uuid, (claimed, *alternates) in zip(asking.instance_uuids, answer, strict=True):
            if not claimed.released:
                LOG.info(
                    "Instance %s is placed on host %s, with %d alternate(s)",
                    uuid,
                    claimed.service_host,
                    len(alternates),
                )
        return partial(self._selected, self._doubt(operation, asking), answer)

    def _on_its_node(
        self, operation: Operation, asking: Asking, spec: RequestSpec, conflict: errors.ConsumerGenerationConflict
    ) -> CommitStep:
        """Ask for the one host on which an instance holds something already; else name what stands in the way."""
        uuid = conflict.consumer_uuid
        try:
            node = self._held.node_of(uuid, spec, instances=len(asking.instance_uuids), tried=asking.node)
        except errors.InvalidState as refusal:
            return self._not_selected(operation, asking, refusal)
        LOG.info("Instance %s holds something on node %s already, and is to be placed there", uuid, node)
        following = structs.replace(_following(self._doubt(operation, asking), asking.instance_uuids), node=node)
        return lambda _connection: Next("select", following)

    def _doubt(self, operation: Operation, asking: Asking) -> Asking:
        """Return the request, marked as doubtful if it may have been sent before in vain."""
        doubtful = asking.doubtful or operation.tries > 0 or operation.resumed
        return structs.replace(asking, doubtful=doubtful)

    def _selected(self, asking: Asking, answer: Sequence[Sequence[Selection]], connection: Connection) -> Outcome:
        """Record hosts for those that are still wanted; ask again for those whose claim stands no more.

        An instance whose deletion is on record is left out: whoever deletes it finds no cell in its record, and
        releases its claim for good, before or after this.
        """
        wanted = _building(connection, asking.instance_uuids)
        claims = [selections[0].claim_id for selections in answer if selections[0].claim_id is not None]
        revoked = self._revoked_claims.among(connection, claims)
        chosen = {
            uuid: selections
            for uuid, selections in zip(asking.instance_uuids, answer, strict=True)
            if uuid in wanted and not selections[0].released and selections[0].claim_id not in revoked
        }
        super_records.select_for(connection, chosen)
        missing = [uuid for uuid in asking.instance_uuids if uuid in wanted and uuid not in chosen]
        if missing:
            asking = structs.replace(asking, generations=asking.generations | _to_name_next(answer, asking))
            return self._ask_again(connection, asking, missing, errors.ClaimContention(tries=asking.lost + 1))
        return Next("hand_over", HandingOver())

    def _not_selected(self, operation: Operation, asking: Asking, fault: errors.MoorageError) -> CommitStep:
        if isinstance(fault, _UNDECIDED) and operation.tries < self._retries(fault):
            raise fault
        # An unanswered request may be carried out yet, and may claim; so may one that was sent before this answer. One
        # whose answer is too large for the bus was carried out.
        doubted = self._doubt(operation, asking)
        if isinstance(fault, (*_UNDECIDED, errors.ReplyTooLarge)):
            doubted = structs.replace(asking, doubtful=True)
        return lambda connection: self._refused(connection, doubted, fault)

    def _retries(self, fault: errors.MoorageError) -> int:
        unanswered: int = self._conf.max_unanswered_retries
        return max(unanswered, _TRIES_WHILE_AWAY) if isinstance(fault, _AWAY) else unanswered

    def _refused(self, connection: Connection, asking: Asking, fault: errors.MoorageError) -> Outcome:
        wanted = _building(connection, asking.instance_uuids)
        match fault:
            case errors.ConsumerDeleted():
                # Its deletion overtook this request, which was all or nothing: the others are asked for again. If we
                # know nothing of a deletion, the uuid has been used before.
                gone = fault.consumer_uuid
                super_records.fail(connection, [gone], str(fault))
                rest = [uuid for uuid in asking.instance_uuids if uuid in wanted and uuid != gone]
                return Next("select", _following(asking, rest)) if rest else self._give_up(asking, [], None)
            case errors.ClaimContention() | errors.ClaimReleased():
                return self._ask_again(connection, asking, [u for u in asking.instance_uuids if u in wanted], fault)
            case errors.ConsumerGenerationConflict() if self._combines(fault):
                return self._combine(asking, [u for u in asking.instance_uuids if u in wanted], fault)
        return self._fail(connection, asking, asking.instance_uuids, fault)

    def _combines(self, fault: errors.ConsumerGenerationConflict) -> bool:
        """Tell whether a claim is added to what a consumer holds that was there before its instance."""
        # Under `retry` as under `fail` an instance that is to be built is new, and so must its consumer be.
        return self._conf.consumer_conflict_policy == conflict_policy.COMBINE and not conflict_policy.is_placed(fault)

    def _combine(self, asking: Asking, uuids: Sequence[str], fault: errors.ConsumerGenerationConflict) -> Outcome:
        if not uuids:
            return self._give_up(asking, [], None)
        others = {uuid: named for uuid, named in asking.generations.items() if uuid != fault.consumer_uuid}
        found = {} if fault.found is None else {fault.consumer_uuid: fault.found}
        following = structs.replace(
            _following(asking, uuids), generations=others | found, conflicts=asking.conflicts + 1
        )
        return Next("select", following, delay=conflict_policy.BACKOFF.seconds(following.conflicts))

    def _ask_again(
        self, connection: Connection, asking: Asking, uuids: Sequence[str], fault: errors.MoorageError
    ) -> Outcome:
        """Ask with a new id, a bounded number of times."""
        if not uuids:
            return self._give_up(asking, [], None)
        if asking.lost >= self._conf.max_contention_retries:
            return self._fail(connection, asking, uuids, fault)
        following = _following(asking, uuids, lost=asking.lost + 1)
        return Next("select", following, delay=_CONTENTION.seconds(following.lost))

    def _fail(
        self, connection: Connection, asking: Asking, uuids: Sequence[str], fault: errors.MoorageError
    ) -> Outcome:
        explanation = fault.explanation if isinstance(fault, errors.NoValidHost) else None
        super_records.fail(connection, uuids, str(fault), explanation)
        LOG.info("%d instance(s) cannot be placed: %s", len(uuids), fault)
        return self._give_up(asking, uuids, str(fault))

    def _give_up(self, asking: Asking, uuids: Sequence[str], reason: str | None) -> Outcome:
        """Go on with what earlier requests of this operation have claimed, then release where there is doubt.

        A request that was never answered may still be carried out. Deleting its consumers for good is the fence: what
        it has claimed goes, and what it would yet claim is refused.
        """
        return Next("hand_over", HandingOver(release=tuple(uuids) if asking.doubtful else (), reason=reason))

    # --- hand_over ----------------------------------------------------------------------------------------------------

    def hand_over(self, operation: Operation) -> CommitStep:
        """Give each cell its instances by a call.

        It is never given up while the cell does not answer: the cell may have them and have built them, and only the
        cell could tell. Their record says what they are waiting for, and deleting them stays possible.
        """
        builds = self._database.read(lambda connection: super_records.to_hand_over(connection, operation.uuid))
        # At the same time: one that does not answer must not hold up the instances of the others.
        faults = at_once(partial(self._give, operation), builds)
        if len(faults) == 1 and isinstance(postponed := next(iter(faults.values())), Postponed):
            raise postponed
        return lambda connection: self._handed_over(connection, operation, builds, faults)

    def _give(
        self, operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]
    ) -> dict[str, errors.MoorageError | Postponed]:
        """Give one cell its instances; return why it has not taken them, by cell, if so."""
        message = BuildInCell(request_id=operation.derived("hand_over", cell_uuid), builds=tuple(builds))
        try:
            self._cells.call(cell_uuid, message)
        except (errors.MoorageError, Postponed) as fault:
            LOG.warning("Cell %s has not taken %d instance(s): %s", cell_uuid, len(builds), fault)
            return {cell_uuid: fault}
        LOG.info("Cell %s has taken %d instance(s)", cell_uuid, len(builds))
        return {}

    def _handed_over(
        self,
        connection: Connection,
        operation: Operation,
        builds: dict[str, tuple[InstanceBuild, ...]],
        faults: dict[str, errors.MoorageError | Postponed],
    ) -> Outcome:
        handing = operation.read(HandingOver)
        release, reason, again = list(handing.release), handing.reason, None
        for cell_uuid, of_cell in builds.items():
            fault = faults.get(cell_uuid)
            uuids = [build.instance_uuid for build in of_cell]
            if fault is None:
                super_records.handed_over(connection, operation.uuid, cell_uuid)
            elif _was_refused(fault) and not (operation.tries or operation.resumed):
                # The cell has said no to the only sending there was, so it has none of them.
                reason = str(fault)
                super_records.fail(connection, uuids, reason)
                release += uuids
            else:
                again = str(fault)
                # A cell that is known to be away is tried again only when it is back: the record says so at once.
                if isinstance(fault, errors.CellUnreachable) or operation.tries >= self._conf.max_unanswered_retries:
                    super_records.note(connection, operation.uuid, cell_uuid, again)
        if again is not None:
            return Again(again)
        if release:
            return Next("release", HandingOver(release=tuple(release), reason=reason))
        return Ended(reason)

    # --- release ------------------------------------------------------------------------------------------------------

    def release(self, operation: Operation) -> CommitStep:
        """Release for good what instances in error may hold, or may yet be given by a late request."""
        handing = operation.read(HandingOver)
        for uuid in handing.release:
            self._placement.call(
                DeleteAllocations(request_id=operation.derived("release", uuid), consumer_uuid=uuid, for_good=True)
            )
        return lambda _connection: Ended(handing.reason)


def _building(connection: Connection, uuids: Collection[str]) -> set[str]:
    """Lock instances; return those that are still to be built."""
    return {uuid for uuid, row in super_records.lock(connection, uuids).items() if row.state == "building"}


def _to_name_next(answer: Sequence[Sequence[Selection]], asking: Asking) -> dict[str, int]:
    """Return the generations at which consumers are whose claim of a repeated answer stands no more."""
    return {
        uuid: claimed.consumer_generation
        for uuid, (claimed, *_) in zip(asking.instance_uuids, answer, strict=True)
        if claimed.released and claimed.consumer_generation is not None
    }


def _following(asking: Asking, uuids: Sequence[str], lost: int | None = None) -> Asking:
    return structs.replace(
        asking,
        number=asking.number + 1,
        instance_uuids=tuple(uuids),
        lost=asking.lost if lost is None else lost,
        # A generation may be named of an instance of the request alone.
        generations={uuid: named for uuid, named in asking.generations.items() if uuid in uuids},
    )


def _was_refused(fault: Exception) -> bool:
    return isinstance(fault, errors.CallerError) and not isinstance(fault, errors.CellNotFound)
