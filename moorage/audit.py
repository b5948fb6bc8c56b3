"""What an audit finds wrong in a cloud, from what its parts say of themselves; pure, and so safe.

Nothing stands still while it is looked at, and the parts are asked one after the other. So a single look proves little;
what is found again some seconds later is (:func:`settled`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moorage.amounts import in_words
from moorage.inspection import Holder, InventoryFinding, StoreAudit, StrangerGuest, ViewDrift
from moorage.model import HostState, Instance

RESIDUE = "RESIDUE"
#: Instances of these states hold nothing any more; one in error does as long as it has a guest that is wanted.
_ENDED = frozenset({"error", "deleted", "shelved"})
#: Of these it is said that their guest runs on their host.
_RUNNING = frozenset({"active", "moved"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    ``kind`` is one of ``over-committed``, ``drifted``, ``leaked``, ``foreign``, ``doubled``, ``unheld``, ``stranger``
    and ``view``.
    """

    kind: str
    #: What it is about: the uuid of a provider, consumer or instance, or the name of a host.
    subject: str
    detail: str
    #: What tells it from others about the same subject, and from another time of the same trouble.
    mark: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What two looks know it by."""
        return self.kind, self.subject, self.mark


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look has seen; null where nobody answered.

    ``instances`` are those that are not deleted, and deleted ones where a residue could not be explained without.
    ``drift`` is by scheduler. ``unseen`` says which part could not be looked at, and why.
    """

    store: StoreAudit | None = None
    instances: Sequence[Instance] | None = None
    hosts: Sequence[HostState] | None = None
    strangers: Sequence[StrangerGuest] = ()
    drift: Mapping[str, ViewDrift] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)


def settled(first: Collection[Finding], second: Collection[Finding]) -> list[Finding]:
    """Return what was found at both looks, as the second saw it."""
    known = {finding.key for finding in first}
    return [finding for finding in second if finding.key in known]


def judge(sight: Sight) -> list[Finding]:
    """Return all that is wrong at one look."""
    found: list[Finding] = []
    if sight.store is not None:
        found += [_inventory("over-committed", one) for one in sight.store.overcommitted]
        found += [_inventory("drifted", one) for one in sight.store.drifted]
        found += [_foreign(holder) for holder in sight.store.holders if holder.foreign]
        if sight.instances is not None:
            found += _leaked(sight.store.holders, sight.instances)
        if sight.hosts is not None:
            found += _claimed_twice(sight.store.holders, sight.hosts)
        if sight.instances is not None and sight.hosts is not None:
            found += _unheld(sight.store.holders, sight.instances, sight.hosts)
    found += _active_twice(sight.instances or ())
    found += [_stranger(stranger) for stranger in sight.strangers]
    found += [
        Finding("view", host, f"scheduler {scheduler} has missed a change of it", scheduler)
        for scheduler, drift in sorted(sight.drift.items())
        for host in drift.drifted
    ]
    return found


def unexplained_residues(store: StoreAudit, instances: Sequence[Instance]) -> set[str]:
    """Return the residues that belong to no attempt of these instances."""
    attempts = {attempt.attempt_id for instance in instances for attempt in instance.attempts}
    residues = [holder for holder in store.holders if holder.consumer_type == RESIDUE]
    return {holder.uuid for holder in residues if holder.uuid is not None and not _is_of(holder, attempts)}


def unanswered(instances: Sequence[Instance]) -> set[str]:
    """Return the uuids of the cells whose half of these instances is missing: their name comes with their answer."""
    return {instance.cell_uuid for instance in instances if instance.cell_uuid is not None and instance.cell is None}


def _inventory(kind: str, one: InventoryFinding) -> Finding:
    detail = f"{one.resource_class}: capacity {one.capacity:g}, used {one.used}, allocations {one.allocated}"
    return Finding(kind, one.provider_uuid, detail, one.resource_class)


def _leaked(holders: Sequence[Holder], instances: Sequence[Instance]) -> Iterator[Finding]:
    """Find what is held by nobody who lives, is a residue, or was written by hand."""
    known = {instance.uuid: instance for instance in instances}
    attempts = {attempt.attempt_id for instance in instances for attempt in instance.attempts}
    for holder in holders:
        reason = _why_leaked(holder, known, attempts, complete=not unanswered(instances))
        if reason:
            detail = f"{reason}; {holder.allocations} allocations"
            yield Finding("leaked", holder.uuid or "(no consumer)", detail, holder.claim_id or "")


def _why_leaked(
    holder: Holder, known: Mapping[str, Instance], attempts: Collection[str], *, complete: bool
) -> str | None:
    """Return why a holder should hold nothing; ``complete`` says that all attempts are known."""
    if holder.uuid is None:
        return "the consumer is gone"
    if holder.foreign:
        return None
    if holder.consumer_type == RESIDUE:
        return "a residue of no known attempt" if complete and not _is_of(holder, attempts) else None
    instance = known.get(holder.migration_of or holder.uuid)
    if instance is None:
        # Without a claim it was written through the placement API, and is the writer's business.
        return "no such instance" if holder.claim_id is not None else None
    if _holds_nothing(instance) and not _is_others(holder):
        return f"the instance is in state {instance.state}"
    if holder.migration_of is not None and complete and instance.migration_uuid != holder.uuid:
        return f"a migration of instance {instance.uuid} that has ended"
    return None


def _foreign(holder: Holder) -> Finding:
    detail = f"was deleted, and holds what others have put there: {in_words(holder.foreign)}"
    return Finding("foreign", str(holder.uuid), detail)


def _is_others(holder: Holder) -> bool:
    """Tell whether what an instance holds was written by others: it goes without a claim only where no host has it."""
    return holder.claim_id is None and holder.migration_of is None


def _is_of(residue: Holder, attempts: Collection[str]) -> bool:
    """Tell whether a residue belongs to one of these attempts; one that was a migration has another uuid."""
    return residue.uuid in attempts or residue.accepted_by in attempts


def _holds_nothing(instance: Instance) -> bool:
    wanted = any(attempt.state == "active" for attempt in instance.attempts)
    return instance.state in _ENDED and not (instance.state == "error" and wanted)


def _claimed_twice(holders: Sequence[Holder], hosts: Sequence[HostState]) -> Iterator[Finding]:
    """Find consumers that one claim places on several hosts; a shared pool is no host."""
    name_of_node = {host.compute_node_uuid: host.service_host for host in hosts}
    for holder in holders:
        on = sorted(name_of_node[uuid] for uuid in holder.root_provider_uuids if uuid in name_of_node)
        if holder.uuid is not None and holder.claim_id is not None and len(on) > 1:
            yield Finding("doubled", holder.uuid, f"holds something on {', '.join(on)}", "claim")


def _active_twice(instances: Sequence[Instance]) -> Iterator[Finding]:
    for instance in instances:
        on = sorted(attempt.host for attempt in instance.attempts if attempt.state == "active")
        if len(on) > 1:
            yield Finding("doubled", instance.uuid, f"has active guests on {', '.join(on)}", "guests")


def _unheld(holders: Sequence[Holder], instances: Sequence[Instance], hosts: Sequence[HostState]) -> Iterator[Finding]:
    """Find guests that run on a host where nothing is held for them: others may claim the same room."""
    roots = {holder.uuid: set(holder.root_provider_uuids) for holder in holders}
    nodes: dict[tuple[str, str], set[str]] = {}
    for host in hosts:
        nodes.setdefault((host.cell_uuid, host.service_host), set()).add(host.compute_node_uuid)
    for instance in instances:
        if instance.state not in _RUNNING or instance.cell_uuid is None or instance.host is None:
            continue
        of_host = nodes.get((instance.cell_uuid, instance.host), set())
        if not of_host & roots.get(instance.uuid, set()):
            yield Finding("unheld", instance.uuid, f"is {instance.state} on {instance.host} and holds nothing there")


def _stranger(stranger: StrangerGuest) -> Finding:
    guest = stranger.guest
    detail = (
        f"has a guest of instance {guest.instance_uuid} that its cell knows nothing of (attempt {guest.attempt_id})"
    )
    return Finding("stranger", guest.host, detail, guest.attempt_id)
