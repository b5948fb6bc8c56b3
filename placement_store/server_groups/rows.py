"""Create, list and delete server groups, and find the root providers that their members are on.

A member is an instance. It is on the root provider where it is placed, and on the one that its migration holds; on the
same root, the two count as one member. A residue is in no group, since its guest is to be removed.
:mod:`placement_store.server_groups.rules` decides whether a root may gain a member.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Row, Select, exc, exists, func, select

from moorage import errors
from moorage.db.columns import now
from moorage.db.script import Script
from moorage.messages import CreateServerGroup, DeleteServerGroup, GetServerGroup, ListServerGroups, ServerGroupState
from moorage.model import ServerGroup
from placement_store.db import bulk
from placement_store.db.store import reads, writes
from placement_store.schema import consumer_groups, consumers, hosts, resource_providers

LOG = logging.getLogger(__name__)

#: The number of groups that one search for outdated ones examines: a million take as long as a statement may take.
_EXAMINED = 10_000


class GroupRow(NamedTuple):
    """Hold the columns of a group that never change."""

    id: int
    uuid: str
    policy: str
    max_per_root: int


#: The uuid of the instance that a row of `consumers` counts for: a migration counts for its instance.
MEMBER = func.coalesce(consumers.c.migration_of, consumers.c.uuid)


# --- Creation -------------------------------------------------------------------------------------------------------


def bind(
    connection: Connection | Script,
    groups: Iterable[ServerGroup | None],
    known: Mapping[str, GroupRow] | None = None,
    path: str = "$.request_spec.server_group",
) -> dict[str, GroupRow]:
    """Return the groups that claims name, by uuid, and create those that do not exist; null is skipped.

    Call it before any row is locked: if a concurrent transaction is creating one of the groups, this one waits until
    that one ends. Every transaction creates groups in the order of their uuids.

    :param known: the groups that probably exist, from an earlier read; if null, they are read. One that was deleted
        meanwhile is noticed when it is locked: an id is never used again.
    :param path: the path of the groups in the message, for the error.
    :raises InvalidRequest: the store has one of them with another policy or maximum; neither ever changes.
    """
    named = {group.uuid: group for group in groups if group is not None}
    # A script's pending statements are carried out only if there is something to read or to create.
    found = _by_uuid(_of(connection), sorted(named)) if known is None else dict(known)
    for uuid, group in sorted(named.items()):
        row = found[uuid] = found.get(uuid) or _create_or_find(_of(connection), group)
        if (row.policy, row.max_per_root) != (group.policy, group.max_server_per_host):
            raise errors.InvalidRequest(
                path=path,
                reason=f"group {uuid} is known with policy {row.policy} and at most {row.max_per_root} on a host",
            )
    return found


@writes(CreateServerGroup)
def create(connection: Connection, message: CreateServerGroup) -> ServerGroupState:
    """Create a group.

    :raises AlreadyExists: there is one of that uuid.
    """
    try:
        _insert(connection, message.group, name=message.name, project_id=message.project_id)
    except exc.IntegrityError as fault:
        raise errors.AlreadyExists(kind="server group", name=message.group.uuid) from fault
    return ServerGroupState(group=message.group, name=message.name, project_id=message.project_id)


def _create_or_find(connection: Connection, group: ServerGroup) -> GroupRow:
    try:
        number = _insert(connection, group, name=None, project_id=None)
    except exc.IntegrityError:  # a concurrent transaction has created it and is committed now
        found = _by_uuid(connection, [group.uuid])
        if not found:
            raise errors.ClaimContention(tries=1) from None
        return found[group.uuid]
    return GroupRow(number, group.uuid, group.policy, group.max_server_per_host)


#: The columns of :class:`GroupRow`.
COLUMNS = [consumer_groups.c[name] for name in GroupRow._fields]
_BY_UUID = bulk.Lookup(select(*COLUMNS), consumer_groups.c.uuid)


def _by_uuid(connection: Connection, uuids: Sequence[str]) -> dict[str, GroupRow]:
    return {row.uuid: GroupRow(*row) for row in _BY_UUID.rows(connection, uuids)}


def _of(connection: Connection | Script) -> Connection:
    return connection.connection if isinstance(connection, Script) else connection


def _insert(connection: Connection, group: ServerGroup, *, name: str | None, project_id: str | None) -> int:
    row = {
        "uuid": group.uuid,
        "policy": group.policy,
        "max_per_root": group.max_server_per_host,
        "name": name,
        "project_id": project_id,
    }
    return cast(int, bulk.insert(connection, consumer_groups, [row], stamps=["created_at"]))


# --- Listing and deletion -------------------------------------------------------------------------------------------


@reads(GetServerGroup)
def get(connection: Connection, message: GetServerGroup) -> ServerGroupState:
    """Return one group with its members.

    :raises ServerGroupNotFound: no server group has that uuid.
    """
    found = _states(connection, _SHOWN.where(consumer_groups.c.uuid == message.uuid))
    if not found:
        raise errors.ServerGroupNotFound(name=message.uuid)
    return found[0]


@reads(ListServerGroups)
def listed(connection: Connection, message: ListServerGroups) -> list[ServerGroupState]:
    """Return the groups of all projects or of one, with their members, or one page of them in the order of uuids.

    They are sorted by name and uuid; groups without a name come first.
    """
    table = consumer_groups.c
    chosen = select(table.id)
    if message.project_id is not None:
        chosen = chosen.where(table.project_id == message.project_id)
    # A join and not `id IN (...)`: MySQL does not support LIMIT there.
    listed_ids = bulk.page(chosen, table.uuid, message.after, message.limit).subquery()
    query = _SHOWN.join(listed_ids, listed_ids.c.id == table.id)
    return sorted(_states(connection, query), key=lambda state: (state.name or "", state.group.uuid))


@writes(DeleteServerGroup, log=lambda message, _done: LOG.info("Server group %s is deleted", message.uuid))
def delete(connection: Connection, message: DeleteServerGroup) -> None:
    """Delete a group that has no members.

    :raises ServerGroupNotFound: no server group has that uuid.
    :raises InvalidState: it has members; those that are on no host count too.
    """
    uuid = message.uuid
    # Select by the uuid, so that its index entry is locked first: a transaction that waited in `bind` holds that lock.
    #
    # SELECT id FROM consumer_groups WHERE uuid = :uuid FOR UPDATE
    group_id = connection.scalar(select(consumer_groups.c.id).where(consumer_groups.c.uuid == uuid).with_for_update())
    if group_id is None:
        raise errors.ServerGroupNotFound(name=uuid)
    # A concurrent write that adds a member waits for the group's row, and then finds it deleted.
    count = connection.scalar(select(func.count(MEMBER.distinct())).where(consumers.c.consumer_group_id == group_id))
    if count:
        raise errors.InvalidState(reason=f"server group {uuid} has {count} members")
    connection.execute(consumer_groups.delete().where(consumer_groups.c.id == group_id))


def outdated(connection: Connection, older_than: float, after: str = "") -> tuple[list[str], str]:
    """Return the uuids of groups without members that claims created more than this many seconds ago.

    A client that still uses such a group names it with its rule in each request: the next claim creates it again.

    :param after: where an earlier call ended, since a call examines only a part of the groups.
    :return: the uuids, and where this call has ended; empty after the last group.
    """
    table = consumer_groups.c
    these = [table.uuid > after]
    # SELECT uuid FROM consumer_groups WHERE uuid > :after ORDER BY uuid LIMIT 1 OFFSET :n
    last = select(table.uuid).where(*these).order_by(table.uuid).limit(1).offset(_EXAMINED - 1)
    end: str = connection.scalar(last) or ""
    if end:
        these.append(table.uuid <= end)
    # SELECT uuid FROM consumer_groups g WHERE uuid > :after AND uuid <= :end AND name IS NULL AND created_at < ...
    #  AND NOT EXISTS (SELECT * FROM consumers c WHERE c.consumer_group_id = g.id)
    has_members = exists().where(consumers.c.consumer_group_id == table.id)
    query = select(table.uuid).where(*these, table.name.is_(None), table.created_at < now() - older_than, ~has_members)
    return sorted(connection.scalars(query)), end


def delete_without_members(connection: Connection, uuids: Sequence[str]) -> int:
    """Delete the groups among these that have no members; return their number. Call it first in a transaction."""
    # Locked as by `delete`: a claim that adds a member meanwhile waits for the row, or its member is found here.
    locked = select(consumer_groups.c.id).where(consumer_groups.c.uuid.in_(uuids)).order_by(consumer_groups.c.uuid)
    group_ids = set(connection.scalars(locked.with_for_update()))
    member_of = consumers.c.consumer_group_id
    group_ids -= set(connection.scalars(select(member_of).where(member_of.in_(group_ids)).distinct()))
    return connection.execute(consumer_groups.delete().where(consumer_groups.c.id.in_(sorted(group_ids)))).rowcount


# One statement, so that one snapshot is read.
_SHOWN = select(
    consumer_groups.c.uuid,
    consumer_groups.c.policy,
    consumer_groups.c.max_per_root,
    consumer_groups.c.name,
    consumer_groups.c.project_id,
    MEMBER.label("member"),
    consumers.c.migration_of,
    resource_providers.c.uuid.label("root_uuid"),
).select_from(
    consumer_groups.outerjoin(consumers, consumers.c.consumer_group_id == consumer_groups.c.id).outerjoin(
        resource_providers, resource_providers.c.id == consumers.c.root_provider_id
    )
)


def _states(connection: Connection, query: Select[Any]) -> list[ServerGroupState]:
    described: dict[str, Row[Any]] = {}
    members: dict[str, dict[str, str | None]] = {}
    # An instance that is being moved is shown on its destination: its own row comes before the rows of its migrations.
    # Of these, one that is on a host comes first, and always the same one.
    rows = connection.execute(query).all()
    for row in sorted(rows, key=lambda row: (row.migration_of is not None, row.root_uuid is None, row.root_uuid)):
        described[row.uuid] = row
        placed = members.setdefault(row.uuid, {})
        if row.member is not None:
            placed.setdefault(row.member, row.root_uuid)
    return [
        ServerGroupState(
            group=ServerGroup(uuid=uuid, policy=row.policy, max_server_per_host=row.max_per_root),
            name=row.name,
            project_id=row.project_id,
            members=dict(sorted(members[uuid].items())),
        )
        for uuid, row in described.items()
    ]


# --- Occupied root providers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OccupiedRoot:
    """Hold the occupancy of one root provider by a server group."""

    #: The number of instances; an instance and its migration count once.
    members: int
    #: Whether the operator has forced its host down: its members do not count for affinity.
    forced_down: bool


@dataclass(slots=True)
class PlacedGroup:
    """Hold the root providers that the members of a server group are on, by uuid."""

    roots: dict[str, OccupiedRoot]
    #: The group's row; null if no member is on a root, so that the row was not read.
    row: GroupRow | None


def placed(*columns: Any) -> Select[Any]:
    """Return the query of ``columns`` for all consumers that are on a root provider.

    It joins ``consumers``, their root in ``resource_providers``, and that root's host in ``hosts``, if it has one. The
    caller adds the condition on the group.
    """
    # SELECT ... FROM consumers c JOIN resource_providers p ON p.id = c.root_provider_id
    #   LEFT JOIN hosts h ON h.compute_node_uuid = p.uuid
    source = consumers.join(resource_providers, resource_providers.c.id == consumers.c.root_provider_id)
    return select(*columns).select_from(source.outerjoin(hosts, hosts.c.compute_node_uuid == resource_providers.c.uuid))


def occupancies(connection: Connection, besides: Mapping[str, Collection[str]]) -> dict[str, PlacedGroup]:
    """Return where the members of groups are, by the group's uuid; one statement reads them.

    A group that does not exist has none.

    :param besides: for each group, the uuids of instances that are not counted, since they are about to be placed.
    """
    placements: dict[str, list[_Placement]] = {uuid: [] for uuid in besides}
    found: dict[str, GroupRow] = {}
    for row in _PLACED_IN_GROUPS.rows(connection, sorted(besides)):
        group, placement = GroupRow(*row[: len(COLUMNS)]), _Placement(*row[len(COLUMNS) :])
        found[group.uuid] = group
        if placement.member not in besides[group.uuid]:
            placements[group.uuid].append(placement)
    return {uuid: PlacedGroup(_occupancy(rows), found.get(uuid)) for uuid, rows in placements.items()}


class _Placement(NamedTuple):
    """Hold a member of a group on a root provider."""

    member: str
    uuid: str
    forced_down: bool | None


_PLACED_IN_GROUPS = bulk.Lookup(
    placed(*COLUMNS, MEMBER, resource_providers.c.uuid, hosts.c.forced_down).join(
        consumer_groups, consumer_groups.c.id == consumers.c.consumer_group_id
    ),
    consumer_groups.c.uuid,
)


def _occupancy(placements: Sequence[_Placement]) -> dict[str, OccupiedRoot]:
    members: dict[str, set[str]] = {}
    down: set[str] = set()
    for row in placements:
        members.setdefault(row.uuid, set()).add(row.member)
        if row.forced_down:
            down.add(row.uuid)
    return {uuid: OccupiedRoot(len(there), uuid in down) for uuid, there in members.items()}
