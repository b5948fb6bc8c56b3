"""The judgement of an audit: findings from the collected state of a cloud's parts; pure functions.

The cloud changes during an audit, and its parts are read one after another. So a single collection proves little: a
finding counts only if a second collection some seconds later has it too (:func:`settled`).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from moorage.model import HostState, Instance, InstanceHolds, RecordedHold
from moorage.model.allocations import Amounts, amounts_of, in_words
from moorage.model.inspection import Holder, InventoryFinding, StoreAudit, UnknownGuest, ViewDrift

RESIDUE = "RESIDUE"
#: The owner of claims that Moorage's conductors have requested.
CONDUCTORS = "conductor"
#: Instances in these states hold nothing any more, except an instance in error whose guest is wanted.
_ENDED = frozenset({"error", "deleted", "shelved"})
#: The types of the two consumers of a move.
_OTHER_SIDE = {"INSTANCE": "MIGRATION", "MIGRATION": "INSTANCE"}
#: The root of a provider tree, or a pool whose root is unknown, and a resource class.
_Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of an audit.

    ``kind`` is one of ``over-committed``, ``drifted``, ``leaked``, ``foreign``, ``doubled``, ``unheld``, ``claim``,
    ``short``, ``stranger`` and ``view``.
    """

    kind: str
    #: The uuid of a provider, consumer or instance, or the name of a host.
    subject: str
    detail: str
    #: Distinguishes the finding from others on the same subject, and from later ones of the same kind.
    mark: str = ""
    #: The instance whose records the finding contradicts, or to which the leaked allocations belonged.
    instance_uuid: str | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of a finding across two collections."""
        return self.kind, self.subject, self.mark


@dataclass(frozen=True, slots=True)
class CloudState:
    """The collected state of a cloud; a field is None if its part gave no answer.

    ``instances`` are the instances that are not deleted. ``unwanted`` are the claims of other services that their
    owners do not want: by claim id, the text of the owner's answer. ``recorded`` are the records of the cells that have
    answered, by cell; they include deleted instances to which a residue may belong. The collector leaves out what an
    instance should hold if it agrees with the store. ``classes`` are all resource classes. ``drift`` is by scheduler.
    ``unseen`` has each part that could not be read, with the reason.
    """

    store: StoreAudit | None = None
    classes: Collection[str] | None = None
    instances: Sequence[Instance] | None = None
    unwanted: Mapping[str, str] = field(default_factory=dict)
    recorded: Mapping[str, Sequence[InstanceHolds]] = field(default_factory=dict)
    #: Whether ``recorded`` has the records of all cells.
    all_recorded: bool = False
    hosts: Sequence[HostState] | None = None
    unknown_guests: Sequence[UnknownGuest] = ()
    drift: Mapping[str, ViewDrift] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)


def settled(first: Collection[Finding], second: Collection[Finding]) -> list[Finding]:
    """Return the findings that are in both collections, as in the second one."""
    known = {finding.key for finding in first}
    return [finding for finding in second if finding.key in known]


def judge(state: CloudState) -> list[Finding]:
    """Return all findings of one collected state."""
    found: list[Finding] = []
    if state.store is not None:
        found += [_inventory("over-committed", one) for one in state.store.overcommitted]
        found += [_inventory("drifted", one) for one in state.store.drifted]
        found += [_foreign(holder) for holder in state.store.holders if holder.foreign]
        recorded = [instance for of_cell in state.recorded.values() for instance in of_cell]
        if state.instances is not None:
            residues = _Residues(state.instances, recorded, all_recorded=state.all_recorded)
            found += _leaked(state.store.holders, state.instances, residues, state.unwanted)
        if state.hosts is not None:
            found += _claimed_twice(state.store.holders, state.hosts)
        compared = RecordsCompared(state.store, state.classes, state.hosts or ())
        found += [finding for instance in recorded for finding in compared.findings(instance)]
    found += _active_twice(state.instances or ())
    found += [_unknown_guest(unknown) for unknown in state.unknown_guests]
    found += [
        Finding("view", host, f"scheduler {scheduler} has missed a change of this host", scheduler)
        for scheduler, drift in sorted(state.drift.items())
        for host in drift.drifted
    ]
    return found


def unexplained_residues(store: StoreAudit, recorded: Sequence[InstanceHolds]) -> set[str]:
    """Return the attempts whose residues belong to none of these instances."""
    attempts = {attempt_id for instance in recorded for attempt_id in instance.attempts}
    residues = [holder for holder in store.holders if holder.is_residue]
    return {holder.accepted_by or holder.uuid or "" for holder in residues if not _is_of(holder, attempts)} - {""}


def claimed_for_others(holders: Sequence[Holder]) -> list[Holder]:
    """Return the holders whose claims services other than Moorage's conductors have requested."""
    return [holder for holder in holders if holder.claim_id is not None and holder.owner not in (None, CONDUCTORS)]


def unanswered(instances: Sequence[Instance]) -> set[str]:
    """Return the uuids of the cells that have not answered for these instances; an answer has the cell's name."""
    return {instance.cell_uuid for instance in instances if instance.cell_uuid is not None and instance.cell is None}


def _inventory(kind: str, one: InventoryFinding) -> Finding:
    detail = f"{one.resource_class}: capacity {one.capacity:g}, used {one.used}, allocations {one.allocated}"
    return Finding(kind, one.provider_uuid, detail, one.resource_class)


def _leaked(
    holders: Sequence[Holder], instances: Sequence[Instance], residues: "_Residues", unwanted: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield leaked allocations, which are not foreign ones.

    They belong to missing consumers, to consumers that should hold nothing, or to claims of other services that their
    owners do not want.
    """
    others = {holder.uuid for holder in claimed_for_others(holders)}
    known = {instance.uuid: instance for instance in instances}
    for holder in holders:
        if holder.uuid is None:
            amounts = f": {in_words(holder.held)}" if holder.held else ""
            yield Finding("leaked", "(no consumer)", f"the consumer is gone; {holder.allocations} allocations{amounts}")
        elif holder.uuid in others and holder.uuid not in known:
            if (reason := unwanted.get(holder.claim_id or "")) is not None:
                yield Finding("leaked", holder.uuid, reason, holder.claim_id or "", instance_uuid=holder.uuid)
        elif not holder.foreign and (reason := _why_leaked(holder, known, residues)):
            owner = holder.migration_of or residues.instance_of(holder) or holder.uuid
            detail = f"{reason}; {holder.allocations} allocations"
            yield Finding("leaked", holder.uuid, detail, holder.claim_id or "", instance_uuid=owner)


class _Residues:
    """The instance of each attempt, and whether a residue may still be held for it."""

    def __init__(self, instances: Sequence[Instance], recorded: Sequence[InstanceHolds], *, all_recorded: bool) -> None:
        #: True if the super conductor's list of instances is complete.
        self.all_answered = not unanswered(instances)
        self._complete = self.all_answered and all_recorded
        self._attempts = {attempt.attempt_id for instance in instances for attempt in instance.attempts}
        self._by_attempt = {attempt: instance for instance in recorded for attempt in instance.attempts}

    def why_leaked(self, holder: Holder) -> str | None:
        """Return why a residue should hold nothing."""
        instance = self._recorded(holder)
        if instance is None:
            return "a residue of no known attempt" if self._complete and not _is_of(holder, self._attempts) else None
        # An attempt without a recorded acceptance may hold a residue until its host has been cleaned up.
        if not instance.settled or not {holder.uuid, holder.accepted_by}.isdisjoint(instance.cleaned):
            return None
        return f"the guest of that attempt of instance {instance.instance_uuid} is gone"

    def instance_of(self, holder: Holder) -> str | None:
        """Return the instance that a residue belongs to."""
        instance = self._recorded(holder)
        return None if instance is None else instance.instance_uuid

    def _recorded(self, holder: Holder) -> InstanceHolds | None:
        return self._by_attempt.get(holder.accepted_by or "") or self._by_attempt.get(holder.uuid or "")


def _why_leaked(holder: Holder, known: Mapping[str, Instance], residues: _Residues) -> str | None:
    """Return why a holder should hold nothing."""
    if holder.is_residue:
        return residues.why_leaked(holder)
    instance = known.get(holder.migration_of or holder.uuid or "")
    if instance is None:
        # Allocations without a claim were written through the placement API, and belong to their writer.
        return "no such instance" if holder.claim_id is not None else None
    if _holds_nothing(instance) and not _is_others(holder):
        return f"the instance is in state {instance.state}"
    if holder.migration_of is not None and residues.all_answered and instance.migration_uuid != holder.uuid:
        return f"a migration of instance {instance.uuid} that has ended"
    return None


def _foreign(holder: Holder) -> Finding:
    detail = f"was deleted, and has foreign allocations: {in_words(holder.foreign)}"
    return Finding("foreign", str(holder.uuid), detail)


def _is_others(holder: Holder) -> bool:
    """Return whether somebody else wrote an instance's allocations: an instance without a claim has no host."""
    return holder.claim_id is None and holder.migration_of is None


def _is_of(residue: Holder, attempts: Collection[str]) -> bool:
    """Return whether a residue belongs to one of these attempts; a former migration's uuid is not the attempt's."""
    return residue.uuid in attempts or residue.accepted_by in attempts


def _holds_nothing(instance: Instance) -> bool:
    wanted = any(attempt.state == "active" for attempt in instance.attempts)
    return instance.state in _ENDED and not (instance.state == "error" and wanted)


def _claimed_twice(holders: Sequence[Holder], hosts: Sequence[HostState]) -> Iterator[Finding]:
    """Yield consumers that one claim places on several hosts; a shared pool is not a host."""
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


class RecordsCompared:
    """Compares the records of instances with the store.

    :param classes: all resource classes; None if they are unknown.
    """

    def __init__(self, store: StoreAudit, classes: Collection[str] | None, hosts: Sequence[HostState]) -> None:
        self._holders = {holder.uuid: holder for holder in store.holders}
        self._roots = store.roots
        self._classes = classes
        self._nodes = {host.compute_node_uuid for host in hosts}
        #: The providers that have allocations, or whose trees have some.
        self._in_use = {uuid for holder in store.holders for uuid in holder.held} | set(store.roots.values())

    def findings(self, instance: InstanceHolds) -> Iterator[Finding]:
        """Yield consumers that hold less than recorded, or differ otherwise: others may claim the rest."""
        if not instance.settled:
            return
        sides: dict[str, RecordedHold] = {hold.consumer_type: hold for hold in instance.holds}
        for hold in instance.holds:
            # Residues on a deleted host were deleted together with it.
            if hold.consumer_type != RESIDUE or hold.root_provider_uuid in self._nodes:
                holder = self._holders.get(hold.consumer_uuid)
                yield from self._differing(instance, hold, holder, sides.get(_OTHER_SIDE.get(hold.consumer_type, "")))

    def _differing(
        self, instance: InstanceHolds, hold: RecordedHold, holder: Holder | None, other: RecordedHold | None
    ) -> Iterator[Finding]:
        """Yield the findings about one consumer; ``other`` is the other side of its move, if it has one."""
        classes = self._classes

        def finding(kind: str, detail: str, mark: str) -> Finding:
            return Finding(kind, hold.consumer_uuid, detail, mark, instance_uuid=instance.instance_uuid)

        mark = hold.claim_id or hold.accepted_by or ""
        if holder is None:
            # A heal leaves out classes that have been deleted since; without others, there is nothing to hold.
            wanted = {
                uuid: {name: amount for name, amount in resources.items() if classes is None or name in classes}
                for uuid, resources in amounts_of(hold.allocations).items()
            }
            where = hold.accepted_host or f"provider {hold.root_provider_uuid}"
            if any(wanted.values()):
                yield finding("unheld", f"holds nothing on {where}, and should hold {in_words(wanted)}", mark)
        elif differences := [each for each in _differences(hold, holder) if each is not None]:
            yield finding("claim", "; ".join(differences), mark)
        else:
            for uuid, name, expected, found in self._shortages(hold, holder, other):
                if classes is not None and name not in classes:
                    continue  # deleted since: a heal leaves it out too
                detail = f"holds {found} {name} of provider {uuid}, and should hold {expected}"
                yield finding("short", detail, f"{mark} {uuid} {name} {expected} {found}")

    def _shortages(
        self, hold: RecordedHold, holder: Holder, other: RecordedHold | None
    ) -> Iterator[tuple[str, str, int, int]]:
        """Yield provider, resource class, recorded and found amount where less is allocated than recorded.

        Allocations beyond the recorded ones are no finding: they are foreign allocations.
        """
        recorded, found = self._by_place(hold, holder)
        lacking = recorded - found
        if lacking and other is not None:
            lacking -= self._on_other_side(lacking, hold, other)
        for (uuid, name), amount in sorted(lacking.items()):
            yield uuid, name, recorded[uuid, name], recorded[uuid, name] - amount

    def _by_place(self, hold: RecordedHold, holder: Holder | None) -> tuple[Counter[_Place], Counter[_Place]]:
        """Return the recorded and the found amounts of a consumer.

        They are summed under the roots of their trees, because a reshape may have moved them.
        """
        roots = self._roots
        root = roots.get(hold.root_provider_uuid, hold.root_provider_uuid)
        recorded: Counter[_Place] = Counter()
        for uuid, part in hold.allocations.items():
            place = roots.get(uuid, uuid) if uuid in hold.pools else root
            recorded.update({(place, name): amount for name, amount in part.resources.items()})
        found = self._by_root({} if holder is None else holder.held)
        hosts = self._hosts(holder, root)
        for uuid, name in [place for place in recorded if self._is_emptied(place[0], hold)]:
            for elsewhere in _outside(hosts, found, name):
                moved = min(recorded[uuid, name] - found[uuid, name], found[elsewhere] - recorded[elsewhere])
                if moved > 0:
                    found[uuid, name] += moved
                    found[elsewhere] -= moved
        return recorded, found

    def _by_root(self, held: Amounts) -> Counter[_Place]:
        found: Counter[_Place] = Counter()
        for uuid, resources in held.items():
            found.update({(self._roots.get(uuid, uuid), name): amount for name, amount in resources.items()})
        return found

    def _is_emptied(self, uuid: str, hold: RecordedHold) -> bool:
        """Return whether a provider is a pool without allocations.

        A reshape may have emptied it, and it may even be deleted: the root of its tree is not known. What it had is
        outside the trees of hosts, beyond what other pools have.
        """
        return uuid in hold.pools and uuid not in self._in_use

    def _hosts(self, holder: Holder | None, root: str) -> set[str]:
        """Return the hosts on which a consumer has allocations, and ``root``; a pool below a host is not a host."""
        own = () if holder is None else (*holder.root_provider_uuids, *holder.held)
        return {root, *self._nodes.intersection(own)}

    def _on_other_side(self, lacking: Counter[_Place], hold: RecordedHold, other: RecordedHold) -> Counter[_Place]:
        """Return the part of lacking amounts of pools that the other side of the move holds.

        On a pool that both sides use, the instance holds the larger of both amounts. A cell takes a pool for shared by
        the names of the providers. But a reshape of the pool before the destination was claimed decides it: the
        instance may hold what the record has for the migration, or the migration what it has for the instance.
        """
        holder = self._holders.get(other.consumer_uuid)
        source = hold if hold.consumer_type == "MIGRATION" else other
        root = self._roots.get(source.root_provider_uuid, source.root_provider_uuid)
        # A heal replaces the amounts of a consumer with another claim or host.
        if holder is not None and any(_differences(other, holder)):
            holder = None
        recorded, found = self._by_place(other, holder)
        emptied_of = {name for uuid, name in recorded if self._is_emptied(uuid, other)}
        everything, hosts = self._by_root({} if holder is None else holder.held), self._hosts(holder, root)
        unknown = {place for name in emptied_of for place in _outside(hosts, everything, name)}
        shared = Counter({place: n for place, n in everything.items() if recorded[place] or place in unknown})
        spare = shared if source is hold else found - recorded
        covered: Counter[_Place] = Counter()
        for (uuid, name), amount in lacking.items():
            if uuid == root:
                continue
            emptied = self._is_emptied(uuid, hold)
            for place in _outside(hosts, spare, name) if emptied else [(uuid, name)]:
                part = min(amount - covered[uuid, name], spare[place])
                covered[uuid, name] += part
                spare[place] -= part
        return covered


def _outside(hosts: Collection[str], amounts: Counter[_Place], name: str) -> list[_Place]:
    return [place for place in amounts if place[1] == name and place[0] not in hosts]


def _differences(hold: RecordedHold, holder: Holder) -> Iterator[str | None]:
    yield _difference("is placed by claim", holder.claim_id, hold.claim_id)
    yield _difference("is placed on provider", holder.placed_on, hold.root_provider_uuid)
    if hold.accepted_by is not None:
        yield _difference("was accepted by attempt", holder.accepted_by, hold.accepted_by)
    if hold.consumer_type != RESIDUE:
        yield _difference("is a migration of", holder.migration_of, hold.migration_of)
    if hold.group is not None:
        yield _difference("is a member of server group", holder.group_uuid, hold.group.uuid)


def _difference(what: str, found: str | None, recorded: str | None) -> str | None:
    return None if found == recorded else f"{what} {found or '(none)'}, but the record has {recorded or '(none)'}"


def _unknown_guest(unknown: UnknownGuest) -> Finding:
    guest = unknown.guest
    detail = (
        f"has a guest of instance {guest.instance_uuid} that its cell knows nothing of (attempt {guest.attempt_id})"
    )
    return Finding("stranger", guest.host, detail, guest.attempt_id)
