"""Claim allocations that place consumers on a host, and record that the host has accepted them."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, or_, select

from moorage import errors, ids
from moorage.db.columns import now
from moorage.db.script import Script
from moorage.messages import AcceptClaim, Claimed, Done, EndMove, SwapClaim
from moorage.model import ServerGroup
from placement_store.allocations import consumers, tombstones
from placement_store.allocations import write as allocations
from placement_store.allocations.consumers import UNCLAIMED, Holding
from placement_store.allocations.write import ConsumerChange
from placement_store.claims import isolated_groups
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderKey
from placement_store.schema import consumers as consumer_table
from placement_store.schema import hosts, resource_providers
from placement_store.server_groups.rows import GroupRow, bind

LOG = logging.getLogger(__name__)

# UPDATE consumers SET accepted_by = :attempt, accepted_host = :host, accepted_at = COALESCE(accepted_at, :now)
#  WHERE uuid = :consumer AND claim_id = :claim
#    AND (accepted_by IS NULL OR (accepted_by = :attempt AND accepted_host = :host))
# Built once: it takes SQLAlchemy longer to build a statement than to run it.
_accepted = consumer_table.c
_ACCEPT = (
    consumer_table.update()
    .where(
        _accepted.uuid == bindparam("consumer"),
        _accepted.claim_id == bindparam("claim"),
        or_(
            _accepted.accepted_by.is_(None),
            and_(_accepted.accepted_by == bindparam("attempt"), _accepted.accepted_host == bindparam("host")),
        ),
    )
    .values(
        accepted_by=bindparam("attempt"),
        accepted_host=bindparam("host"),
        accepted_at=func.coalesce(_accepted.accepted_at, now()),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewClaim:
    """Describe the claim of one consumer: its allocations, and the root provider of the host that it is placed on.

    ``consumer_generation`` is the one that the consumer must be at; null means that it must not exist. ``owner`` is the
    topic that the reconciler asks whether a claim that no host has accepted is still wanted.
    """

    consumer_uuid: str
    project_id: str
    user_id: str
    root_provider_uuid: str
    allocations: Mapping[str, Mapping[str, int]]
    owner: str | None
    consumer_type: str = "INSTANCE"
    consumer_generation: int | None = None
    #: The server group whose rule the claim must keep; without one the consumer stays in its present one, if any.
    group: ServerGroup | None = None
    #: The providers of its suffixed groups, if the request isolates these from each other.
    isolated: isolated_groups.Groups = field(default_factory=dict)
    claim_id: str = field(default_factory=ids.fresh)

    @property
    def claimed(self) -> Claimed:
        """The answer to the claim, once it is written."""
        return Claimed(claim_id=self.claim_id, consumer_generation=(self.consumer_generation or 0) + 1)


def claim(
    connection: Connection | Script,
    claims: Sequence[NewClaim],
    names: ResourceClassNames,
    *,
    keep_held: bool = False,
    known: Mapping[str, ProviderKey] | None = None,
    groups: Mapping[str, GroupRow] | None = None,
) -> list[Claimed]:
    """Place all these consumers, or none: after any error, the transaction must be rolled back.

    A script is run to its end: first its earlier statements, then the claims.

    The allocations of a consumer that exists are replaced, unless a host has accepted its claim.

    :param keep_held: keep the allocations of consumers that exist, and add those of the claim.
    :param known: the keys of the providers by uuid, from an earlier read; if null, they are read. If given, each
        claim must have an allocation of its root provider.
    :param groups: the server groups by uuid, from an earlier read of those that have members; if null, they are read.
    :raises CapacityExceeded: an amount does not fit; ``refusals`` names every provider that has refused.
    :raises ConsumerGenerationConflict: a consumer is at another generation than the one named; or its allocations are
        to be kept, and it is placed already: by a claim, or by allocations in the tree of another host.
    :raises ConsumerDeleted: a consumer has been deleted for good.
    :raises InvalidState: a host has accepted the claim of one of the consumers.
    :raises GroupRuleRefused: the rule of a consumer's server group does not let it go there.
    :raises InvalidRequest: a consumer is named twice, or the store knows its group with another rule.
    :raises ProviderNotFound: a provider that is named does not exist.
    :raises ResourceClassNotFound: a resource class that is named does not exist.
    :raises ClaimContention: a concurrent transaction has changed something else.
    """
    if len({new.consumer_uuid for new in claims}) != len(claims):
        raise errors.InvalidRequest(path="$.instance_uuids", reason="a consumer is named twice")
    script = connection if isinstance(connection, Script) else Script(connection)
    named = [new.group for new in claims if new.group is not None]
    # Before anything is locked, since this creates groups that do not exist yet.
    bound = bind(script, named, groups) if named else {}
    # Outdated keys are detected when the providers are locked: an id is never used again.
    keys = providers.keys_of(script.connection, _providers_named(claims)) if known is None else known
    # All these reads take no lock: the compare-and-swap of the generations in the write proves that they are still
    # valid, and only the write decides whether the amounts fit.
    found = _found(script, claims, keys, keep_held=keep_held)
    staying = {uuid: Counter(holding.amounts) for uuid, holding in found.items()} if keep_held else {}
    changes = [
        ConsumerChange(
            uuid=new.consumer_uuid,
            before=found.get(new.consumer_uuid),
            after=staying.get(new.consumer_uuid, Counter())
            + Counter(allocations.numbered(new.allocations, keys, names, script.ahead)),
            named=frozenset(keys[uuid].id for uuid in new.allocations),
            columns=placement_columns(new, keys[new.root_provider_uuid].root_id, bound),
            claimed=True,
            unaccepted=True,
        )
        for new in claims
    ]
    # A stale read is not retried here: the decision that claims refreshes its view and plans again.
    try:
        roots = dict(keys[uuid] for uuid in _providers_named(claims))
        allocations.write(script, changes, names, roots=roots, groups=bound.values())
        script.run()
    except StaleRead as fault:
        raise _explain_stale_read(script.connection, claims, known or {}) from fault
    return [new.claimed for new in claims]


def _log(message: AcceptClaim, _done: Done) -> None:
    LOG.info("Host %s has accepted the claim of consumer %s", message.host, message.consumer_uuid)


# Not stored: after the claim is released, a repeated message must not get a stored success.
@writes(AcceptClaim, is_stored=False, row=lambda message: message.consumer_uuid, log=_log)
def accept(connection: Connection, message: AcceptClaim) -> None:
    """Record that an attempt's host has accepted a claim that still exists; the same attempt may repeat it.

    :raises ClaimReleased: the claim was released or replaced, or was accepted for another attempt.
    """
    accepted = {
        "consumer": message.consumer_uuid,
        "claim": message.claim_id,
        "attempt": message.attempt_id,
        "host": message.host,
    }
    updated = connection.execute(_ACCEPT, accepted)
    if updated.rowcount != 1:
        raise errors.ClaimReleased(consumer_uuid=message.consumer_uuid, claim_id=message.claim_id)


def current_claims(connection: Connection, consumer_uuids: Collection[str]) -> dict[str, tuple[str | None, int]]:
    """Return the claim id, if any, and the generation of each of these consumers that exists, by uuid."""
    table = consumer_table
    query = select(table.c.uuid, table.c.claim_id, table.c.generation)
    rows = bulk.select_in(connection, query, table.c.uuid, sorted(consumer_uuids))
    return {row.uuid: (row.claim_id, row.generation) for row in rows}


def placed_by(found: Mapping[str, Holding], consumer_uuid: str, claim_id: str) -> Holding:
    """Return the consumer that a claim places, from the consumers that were found.

    :raises ClaimReleased: it has been released, or replaced by another one.
    """
    holding = found.get(consumer_uuid)
    if holding is None or holding.claim_id != claim_id:
        raise errors.ClaimReleased(consumer_uuid=consumer_uuid, claim_id=claim_id)
    return holding


def require_releasable(holding: Holding, message: SwapClaim | EndMove) -> None:
    """Refuse to release a claim that a host has accepted, unless its guest is gone or may leave a residue.

    :raises InvalidState: the guest is not known to be gone, and no residue may be left.
    """
    if holding.accepted_by is not None and not (message.guest_gone or message.leave_residue):
        raise already_accepted(holding.uuid)


def placement_columns(new: NewClaim, root_id: int, bound: Mapping[str, GroupRow]) -> dict[str, Any]:
    """Return the columns of a consumer that a new claim places; without a named group it stays in its present one."""
    group = {} if new.group is None else {"consumer_group_id": bound[new.group.uuid].id}
    return {
        **UNCLAIMED,
        "claim_id": new.claim_id,
        "root_provider_id": root_id,
        "owner": new.owner,
        "project_id": new.project_id,
        "user_id": new.user_id,
        "consumer_type": new.consumer_type,
        "known_over_rpc": True,
        "isolated_groups": isolated_groups.encoded(new.isolated),
        **group,
    }


def already_accepted(consumer_uuid: str) -> errors.InvalidState:
    """Return the error that a host has accepted the claim of a consumer."""
    return errors.InvalidState(reason=f"a host has accepted the claim of consumer {consumer_uuid}")


# --- Parts ----------------------------------------------------------------------------------------------------------


def _providers_named(claims: Sequence[NewClaim]) -> set[str]:
    return {uuid for new in claims for uuid in (new.root_provider_uuid, *new.allocations)}


def _found(
    script: Script, claims: Sequence[NewClaim], keys: Mapping[str, ProviderKey], *, keep_held: bool
) -> dict[str, Holding]:
    """Return the existing consumers that claims name with a generation, and refuse those that must not be claimed.

    :raises MoorageError: a consumer must not be claimed; see :func:`claim`.
    """
    # A consumer without a named generation is not read: its insert fails if it exists, since its uuid is unique. Its
    # tombstone is not read either: that is done when the consumer is created.
    expected = [new for new in claims if new.consumer_generation is not None]
    if not expected:
        return {}
    found = consumers.holdings(script.connection, {new.consumer_uuid for new in expected})
    for new in expected:
        holding = found.get(new.consumer_uuid)
        _require_claimable(script.connection, new, holding)
        if keep_held and holding is not None:
            _require_unplaced(script.connection, new, holding, keys[new.root_provider_uuid].root_id)
    return found


def _require_claimable(connection: Connection, new: NewClaim, holding: Holding | None) -> None:
    found = None if holding is None else holding.generation
    # The tombstone of a new consumer is read when the consumer is created.
    if holding is not None or new.consumer_generation is not None:
        tombstones.require_unburied(connection, new.consumer_uuid, holding)
    if found != new.consumer_generation:
        raise errors.ConsumerGenerationConflict(
            consumer_uuid=new.consumer_uuid, named=new.consumer_generation, found=found
        )
    if holding is not None and holding.accepted_by is not None:
        raise already_accepted(new.consumer_uuid)


def _require_unplaced(connection: Connection, new: NewClaim, holding: Holding, root_id: int) -> None:
    """Refuse to add a claim to a consumer that is placed already, by a claim or by allocations of another host."""
    # SELECT root.id FROM resource_providers p JOIN resource_providers root ON root.id = p.root_provider_id
    #   JOIN hosts h ON h.compute_node_uuid = root.uuid
    #  WHERE p.id IN (...) AND root.id <> :chosen
    held_of, root = resource_providers.alias(), resource_providers.alias()
    source = held_of.join(root, root.c.id == held_of.c.root_provider_id)
    query = (
        select(root.c.id)
        .select_from(source.join(hosts, hosts.c.compute_node_uuid == root.c.uuid))
        .where(held_of.c.id.in_({provider_id for provider_id, _ in holding.rows}), root.c.id != root_id)
    )
    if holding.claim_id is not None or connection.execute(query).first() is not None:
        raise errors.ConsumerGenerationConflict(
            consumer_uuid=new.consumer_uuid, named=new.consumer_generation, found=holding.generation
        )


def _explain_stale_read(
    connection: Connection, claims: Sequence[NewClaim], known: Mapping[str, ProviderKey]
) -> errors.MoorageError:
    """Re-read the consumers and providers of a claim and return the error that explains why its write was stale."""
    uuids = {new.consumer_uuid for new in claims}
    gone = tombstones.buried(connection, uuids)
    found = consumers.holdings(connection, uuids)
    try:
        for new in claims:
            if new.consumer_uuid in gone:
                return errors.ConsumerDeleted(consumer_uuid=new.consumer_uuid)
            holding = found.get(new.consumer_uuid)
            # A consumer with its new claim was written by this transaction itself.
            if holding is None or holding.claim_id != new.claim_id:
                _require_claimable(connection, new, holding)
        present = providers.keys_of(connection, _providers_named(claims))
    except errors.MoorageError as reason:
        return reason
    for uuid, key in sorted(present.items()):
        if known.get(uuid, key) != key:
            # The provider with this uuid was deleted, or is in another tree now.
            return errors.ProviderNotFound(name=uuid)
    return errors.ClaimContention(tries=1)
