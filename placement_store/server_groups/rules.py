"""Verify the rules of server groups, in the transaction of the write itself, on each root provider that gains a member.

A write that adds a member to a root locks the group's row, after all other rows, and then counts the present members.
No counter is stored, so none can be wrong. A write that only removes members, or leaves them where they are, locks no
group and is never refused. The number of statements does not depend on the number of groups. For anti-affinity, they
are sent in one round trip with the other last statements of the write.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, select, true

from moorage import errors
from moorage.db.script import Script, StatementOutcome
from placement_store.db import bulk
from placement_store.providers.rows import uuids_of
from placement_store.schema import consumer_groups, consumers, hosts, resource_providers
from placement_store.server_groups.rows import COLUMNS, MEMBER, GroupRow, placed

_HARD = ("affinity", "anti-affinity")


class Membership(NamedTuple):
    """Record that a member of a server group is on a root provider, or on none (null)."""

    group_id: int
    root_id: int | None
    #: The uuid of the instance, even if its migration holds the allocations.
    member: str


def verify(
    script: Script,
    before: Collection[Membership],
    after: Collection[Membership],
    written: Collection[str],
    read: Iterable[GroupRow] = (),
) -> None:
    """Refuse a write that has placed a member where the rule of its server group forbids it.

    The last statements run, and raise their errors, when the caller runs the script.

    :param before: the memberships, before the write, of the consumers whose membership it may have changed.
    :param after: their memberships now.
    :param written: the uuids of these consumers.
    :param read: groups that this transaction has read or created.
    :raises GroupRuleRefused: the rule of a group does not allow it.
    :raises ClaimContention: a group has been deleted concurrently.
    """
    known = {(membership.group_id, membership.member) for membership in before}
    gained = {
        membership
        for membership in set(after).difference(before)
        if membership.root_id is not None or (membership.group_id, membership.member) not in known
    }
    gains: dict[tuple[int, int], set[str]] = {}
    for group_id, root_id, member in gained:
        if root_id is not None:
            gains.setdefault((group_id, root_id), set()).add(member)
    groups = _lock(script, sorted({membership.group_id for membership in gained}), read)
    roots = [_GainedRoot(script, groups[place[0]], place[1], gains[place], written) for place in sorted(gains)]
    _verify_apart(script, [root for root in roots if root.group.policy == "anti-affinity"])
    for root in roots:
        if root.group.policy == "affinity":
            root.verify_together()


def _lock(script: Script, group_ids: Sequence[int], read: Iterable[GroupRow]) -> dict[int, GroupRow]:
    """Lock groups against other writes that add a member to a root; with a soft rule, only against deletion.

    In every transaction, groups with a hard rule come first, in the order of their ids, and then the others.

    :raises ClaimContention: one has been deleted before it had a member; the next request that names it creates it.
    """
    groups = {row.id: row for row in read if row.id in group_ids}
    unread = [id_ for id_ in group_ids if id_ not in groups]
    if unread:
        groups |= {row.id: GroupRow(*row) for row in _BY_ID.rows(script.connection, unread)}
    hard = [id_ for id_ in group_ids if id_ in groups and groups[id_].policy in _HARD]
    soft = sorted(groups.keys() - set(hard))
    # An update and not a locking read: the nodes of a Galera cluster certify each other's updates at the commit, but
    # never see each other's locks.
    #
    # UPDATE consumer_groups SET seq = seq + 1 WHERE id IN (...)
    for chunk in bulk.chunks(hard):
        text = f"UPDATE consumer_groups SET seq = seq + 1 WHERE id IN ({_numbers(chunk)})"  # noqa: S608
        script.add(text, then=partial(_require_all, len(chunk)))
    # SELECT ... FROM consumer_groups WHERE id IN (...) ORDER BY id LOCK IN SHARE MODE
    shared = len(list(_SHARED.rows(script.connection, soft))) if soft else 0
    if len(hard) + shared != len(group_ids):
        raise errors.ClaimContention(tries=1)
    return groups


def _require_all(number: int, outcome: StatementOutcome) -> None:
    if outcome.rowcount != number:
        raise errors.ClaimContention(tries=1)


def _numbers(ids: Iterable[int]) -> str:
    """Return ids as SQL text: with parameters, SQLAlchemy would take longer than the database."""
    return ", ".join(map(str, ids))


_BY_ID = bulk.Lookup(select(*COLUMNS), consumer_groups.c.id)
_SHARED = bulk.Lookup(
    select(consumer_groups.c.id).order_by(consumer_groups.c.id).with_for_update(read=True), consumer_groups.c.id
)

_MEMBERS = placed(consumers.c.uuid, MEMBER.label("member"), resource_providers.c.uuid.label("root_uuid"))


class _Member(NamedTuple):
    """Hold a consumer that counts as a member on a root provider."""

    uuid: str
    #: The uuid of the instance, also of one that the consumer moves.
    member: str
    group_id: int
    root_id: int


def _verify_apart(script: Script, gained: Sequence["_GainedRoot"]) -> None:
    """Verify roots that have gained members of locked anti-affinity groups; one statement reads all their members."""
    if not gained:
        return
    groups, roots = {root.group.id for root in gained}, {root.root_id for root in gained}

    def verify_each(outcome: StatementOutcome) -> None:
        here: dict[tuple[int, int], list[_Member]] = {}
        # The statement combines each of these groups with each of these roots: some of the pairs are not wanted.
        for row in outcome.rows:
            found = _Member(*row)
            here.setdefault((found.group_id, found.root_id), []).append(found)
        for root in gained:
            root.verify_apart(here.get((root.group.id, root.root_id), ()))

    script.add(
        "SELECT uuid, COALESCE(migration_of, uuid), consumer_group_id, root_provider_id FROM consumers"  # noqa: S608
        f" WHERE consumer_group_id IN ({_numbers(sorted(groups))}) AND root_provider_id IN ({_numbers(sorted(roots))})",
        then=verify_each,
    )


@dataclass(frozen=True, slots=True)
class _GainedRoot:
    """Verify the rule of a locked group on one root provider that has gained members of it."""

    script: Script
    group: GroupRow
    root_id: int
    members: Collection[str]
    written: Collection[str]

    def verify_apart(self, members_here: Sequence[_Member]) -> None:
        """Refuse the write if more members of an anti-affinity group are here now than its rule allows.

        :raises GroupRuleRefused: there are more.
        """
        here = {row.member for row in members_here}
        if len(here) <= self.group.max_per_root:
            return
        newcomers = self._newcomers(members_here)
        for member in sorted(newcomers):
            there = len(here - newcomers)
            most = self.group.max_per_root
            raise self._refused(member, f"{there} of its members are there already, and at most {most} may be")

    def verify_together(self) -> None:
        """Refuse the write unless all other members are only on this root; hosts that are forced down do not count.

        So the only member of a group may go anywhere. While its migration holds the source, it is on two roots, and no
        other member may join it on either.

        :raises GroupRuleRefused: another member is elsewhere.
        """
        elsewhere: dict[str, set[str]] = {}
        not_here = (consumers.c.root_provider_id != self.root_id, hosts.c.forced_down.is_not(true()))
        for row in self._rows(*not_here):
            elsewhere.setdefault(row.member, set()).add(row.root_uuid)
        if not elsewhere:
            return
        for member in sorted(self.members):
            others = {other: roots for other, roots in elsewhere.items() if other != member}
            if others and member in self._newcomers(self._members_here()):
                raise self._refused(member, self._why_apart(member in elsewhere, others))

    def _why_apart(self, leaves: bool, others: Mapping[str, Collection[str]]) -> str:
        roots = ", ".join(sorted({root for there in others.values() for root in there}))
        if leaves:
            return f"it would leave others behind on {roots}: only a member that is the only one moves"
        here = {row.member for row in self._members_here()}
        for other, there in sorted(others.items()):
            if len(there) > 1 or other in here:
                return f"its member {other} is moving, and nobody joins before that has ended"
        return f"its members are on {roots}"

    def _newcomers(self, here: Sequence[Row[Any] | _Member]) -> set[str]:
        """Return the members that were not on this root before: no consumer outside this write counts for them here."""
        return set(self.members).difference(row.member for row in here if row.uuid not in self.written)

    def _members_here(self) -> Sequence[Row[Any]]:
        return self._rows(consumers.c.root_provider_id == self.root_id)

    def _rows(self, *conditions: ColumnElement[bool]) -> Sequence[Row[Any]]:
        query = _MEMBERS.where(consumers.c.consumer_group_id == self.group.id, *conditions)
        return self.script.connection.execute(query).all()

    def _refused(self, member: str, reason: str) -> errors.GroupRuleRefused:
        return errors.GroupRuleRefused(
            group_uuid=self.group.uuid,
            policy=self.group.policy,
            consumer_uuid=member,
            provider_uuid=uuids_of(self.script.connection, [self.root_id])[self.root_id],
            reason=reason,
        )
