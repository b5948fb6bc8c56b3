"""Write the claims of decisions, each request with its answer, alone or several in one transaction."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from sqlalchemy import Connection

from moorage import errors, metrics
from moorage.messages import SelectDestinations
from moorage.service.stored_requests import StoredRequests
from placement_store.claims import begin_move, isolated_groups
from placement_store.claims import claim as claims
from placement_store.claims.claim import NewClaim
from placement_store.db.names import ResourceClassNames
from placement_store.providers.rows import ProviderKey
from placement_store.server_groups.rows import GroupRow
from scheduler.decide.planner import DestinationPlan
from scheduler.decide.selections import Selections, selections_of

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedRequest:
    """A request with its plan."""

    message: SelectDestinations
    plan: DestinationPlan
    #: The row of its server group, as it was read for the plan; null if it has no group, or one without members.
    group: GroupRow | None = None

    @cached_property
    def claims(self) -> Sequence[NewClaim]:
        """The claims that the plan makes."""
        message, plan, spec = self.message, self.plan, self.message.request_spec
        return [
            NewClaim(
                consumer_uuid=instance_uuid,
                project_id=spec.project_id,
                user_id=spec.user_id,
                root_provider_uuid=plan.node(choice),
                allocations={uuid: part.resources for uuid, part in choice.allocation_request.allocations.items()},
                owner=message.owner,
                consumer_generation=message.consumer_generations.get(instance_uuid),
                group=spec.server_group,
                isolated=isolated_groups.suffixed(choice.allocation_request.mappings) if plan.is_isolated else {},
            )
            for instance_uuid, choice in zip(message.instance_uuids, plan.chosen, strict=True)
        ]

    @property
    def only_claims(self) -> bool:
        """True if its write consists only of claims: then one transaction may write it together with other requests."""
        return self.message.move is None and not self.message.keep_held

    @property
    def only_adds(self) -> bool:
        """True if its write only adds what it claims; a write for an existing instance may also release allocations."""
        return self.only_claims and not self.message.consumer_generations

    @cached_property
    def keys(self) -> Mapping[str, ProviderKey] | None:
        """The keys of the providers by uuid, from the view; null if the claim must read them.

        The claim locks the providers that it allocates from, and so detects outdated keys. A root provider that it does
        not allocate from must be read.
        """
        keys: dict[str, ProviderKey] = {}
        for choice in self.plan.chosen:
            tree, allocations = self.plan.view.trees[choice.row], choice.allocation_request.allocations
            if tree is None or tree.own[0].uuid not in allocations:
                return None
            keys |= {one.uuid: ProviderKey(one.id, one.root_id) for one in tree.serving if one.uuid in allocations}
        return keys

    @cached_property
    def answer(self) -> Selections:
        """The answer that is stored with the claims."""
        claimed = [new.claimed for new in self.claims]
        return selections_of(self.plan, claimed, self.message.request_spec.server_group)


class ClaimRefused(Exception):
    """Report that the store has refused the claim of a plan.

    :param provider_uuids: the providers that refused; empty if the claim failed because of a concurrent change.
    """

    def __init__(self, provider_uuids: Collection[str] = ()) -> None:
        super().__init__(provider_uuids)
        self.provider_uuids = set(provider_uuids)


class WrittenClaims(NamedTuple):
    """The answer to a request whose claims are written."""

    answer: Selections
    #: Whether the request had been answered before, and this is the stored answer.
    replayed: bool
    #: Whether its transaction has written only new claims, and so has bumped the ``seq`` of each provider by one.
    bumped_once: bool


class ClaimWriter:
    """Write the claims of planned requests, each with its answer; each request is written as a whole or not at all."""

    def __init__(self, requests: StoredRequests, names: ResourceClassNames) -> None:
        self.requests = requests
        self._names = names

    def write(self, planned: PlannedRequest) -> WrittenClaims:
        """Claim the plan of a request.

        :raises ClaimRefused: a provider has no room any more, is gone, or breaks the rule of the server group.
        :raises MoorageError: as :func:`placement_store.claims.claim.claim` and, for a move,
            :func:`placement_store.claims.begin_move.begin` do.
        """
        metrics.CLAIM_TRIES.inc()
        with _noticing_refusals():
            stored = (
                self.requests.once_by(planned.message, lambda: self._claim_only([planned])[0])
                if planned.only_claims
                else self.requests.once(planned.message, partial(self._claim, planned), planned.answer)
            )
        if not stored.replayed:
            metrics.CLAIMS.inc(len(planned.claims))
        return WrittenClaims(stored.result, stored.replayed, planned.only_adds)

    def write_together(self, planned: Sequence[PlannedRequest]) -> list[WrittenClaims]:
        """Claim the plans of several requests, all or nothing, in one transaction.

        Each request must consist only of claims, and no two of them may name the same instance.

        :raises ClaimRefused: as :meth:`write` does.
        :raises DuplicateRequest: one of them has been answered already.
        :raises MoorageError: as :func:`placement_store.claims.claim.claim` does.
        """
        metrics.CLAIM_TRIES.inc()
        with _noticing_refusals():
            answers = self._claim_only(planned)
        metrics.CLAIMS.inc(sum(len(one.claims) for one in planned))
        # One request may have released allocations of a provider from which another one has claimed.
        only_adds = all(one.only_adds for one in planned)
        return [WrittenClaims(answer, replayed=False, bumped_once=only_adds) for answer in answers]

    def _claim_only(self, planned: Sequence[PlannedRequest]) -> list[Selections]:
        """Claim the hosts of plans that consist only of claims, in a transaction of their own."""
        made = [new for one in planned for new in one.claims]
        known = [one.keys for one in planned]
        keys = None if None in known else {uuid: key for keys in known if keys for uuid, key in keys.items()}
        read = {one.group.uuid: one.group for one in planned if one.group is not None}
        self.requests.once_together(
            [(one.message, one.answer) for one in planned],
            lambda script: claims.claim(script, made, self._names, known=keys, groups=read),
        )
        return [one.answer for one in planned]

    def _claim(self, planned: PlannedRequest, connection: Connection) -> Selections:
        """Claim the hosts of any other plan, within the transaction that stores the answer."""
        message = planned.message
        if message.move is None:
            claims.claim(connection, planned.claims, self._names, keep_held=message.keep_held, known=planned.keys)
        else:
            [new] = planned.claims
            begin_move.begin(connection, new, message.move, self._names)
        return planned.answer


@contextmanager
def _noticing_refusals() -> Iterator[None]:
    """Log each error with which the store refuses a plan, and raise :class:`ClaimRefused` instead.

    :raises ClaimRefused: the store has refused it.
    """
    try:
        yield
    except errors.CapacityExceeded as refusal:
        raise _refused(refusal, {miss["provider_uuid"] for miss in refusal.refusals}) from refusal
    except errors.ProviderNotFound as missing:
        raise _refused(missing, {missing.name}) from missing
    except errors.GroupRuleRefused as refusal:
        raise _refused(refusal, {refusal.provider_uuid}) from refusal
    except errors.ClaimContention as contention:
        # Something has changed between two statements of the claim; no provider has refused it.
        raise _refused(contention) from contention


def _refused(why: errors.MoorageError, provider_uuids: Collection[str] = ()) -> ClaimRefused:
    metrics.CLAIM_CONFLICTS.labels(why.code).inc()
    LOG.debug("The claim was refused by %s", set(provider_uuids) or "nobody in particular")
    return ClaimRefused(provider_uuids)
