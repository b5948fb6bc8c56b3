"""Server groups: the hosts on which their rules allow members."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from moorage import errors, ids
from moorage.messages import CreateServerGroup, DeleteServerGroup, Done, ServerGroupState
from moorage.model import ServerGroup
from support.placement_store.model.basis import Holder, Model, apply
from support.placement_store.model.faults import refuse

#: All groups that may exist; the rule of each never changes.
GROUPS = {
    group.uuid: group
    for group in (
        ServerGroup(uuid=ids.derived("group", "apart"), policy="anti-affinity"),
        ServerGroup(uuid=ids.derived("group", "two at most"), policy="anti-affinity", max_server_per_host=2),
        ServerGroup(uuid=ids.derived("group", "together"), policy="affinity"),
        ServerGroup(uuid=ids.derived("group", "soft"), policy="soft-affinity"),
    )
}


class Standing(NamedTuple):
    """The membership of a consumer in a server group, with its root provider, if any."""

    group: str
    root: str | None
    member: str


def standing(uuid: str, holder: Holder | None) -> Standing | None:
    """Return the group membership of a consumer."""
    if holder is None or holder.group is None:
        return None
    return Standing(holder.group, holder.root, holder.migration_of or uuid)


def refusals(
    before: Mapping[str, Holder], after: Mapping[str, Holder], written: Collection[str]
) -> list[errors.MoorageError]:
    """Return an error for each group whose rule forbids the new host of a written member.

    :param written: the consumers that are written.
    """
    there = {uuid: one for uuid, holder in after.items() if (one := standing(uuid, holder)) and one.root is not None}
    stood = {standing(uuid, before.get(uuid)) for uuid in written}
    gained = {there[uuid] for uuid in written if uuid in there} - stood
    left_alone = {one for uuid, one in there.items() if uuid not in written}
    return [
        errors.GroupRuleRefused(
            group_uuid=one.group,
            policy=GROUPS[one.group].policy,
            consumer_uuid=one.member,
            provider_uuid=str(one.root),
            reason="",
        )
        for one in gained
        if one not in left_alone and _is_broken(one, there.values())
    ]


def _is_broken(newcomer: Standing, there: Iterable[Standing]) -> bool:
    """Return whether a newcomer and the existing members break the rule of their group."""
    group = GROUPS[newcomer.group]
    others = {(one.root, one.member) for one in there if one.group == group.uuid and one.member != newcomer.member}
    if group.policy == "affinity":
        return any(root != newcomer.root for root, _ in others)
    if group.policy == "anti-affinity":
        return len({member for root, member in others if root == newcomer.root}) >= group.max_server_per_host
    return False


def shown(model: Model) -> dict[str, ServerGroupState]:
    """Return the groups with their members, as the store shows them."""
    states: dict[str, ServerGroupState] = {}
    for uuid, (name, project_id) in model.groups.items():
        own: dict[str, str | None] = {}
        of_migrations: dict[str, set[str]] = {}
        for consumer, holder in model.holders.items():
            stands = standing(consumer, holder)
            if stands is None or stands.group != uuid:
                continue
            if holder.migration_of is None:
                own[consumer] = stands.root
            else:
                places = of_migrations.setdefault(stands.member, set())
                if stands.root is not None:
                    places.add(stands.root)
        members = {member: min(roots, default=None) for member, roots in of_migrations.items()} | own
        states[uuid] = ServerGroupState(
            group=GROUPS[uuid], name=name, project_id=project_id, members=dict(sorted(members.items()))
        )
    return states


@apply.register
def create(message: CreateServerGroup, model: Model, _found: Any) -> ServerGroupState:
    """Create a group that does not exist."""
    uuid = message.group.uuid
    refuse([errors.AlreadyExists(kind="server group", name=uuid)] * (uuid in model.groups))
    model.groups[uuid] = (message.name, message.project_id)
    return ServerGroupState(group=message.group, name=message.name, project_id=message.project_id)


@apply.register
def delete(message: DeleteServerGroup, model: Model, _found: Any) -> Done:
    """Delete a group that has no members."""
    refuse([errors.ServerGroupNotFound(name=message.uuid)] * (message.uuid not in model.groups))
    has_members = any(holder.group == message.uuid for holder in model.holders.values())
    refuse([errors.InvalidState(reason="it has members")] * has_members)
    del model.groups[message.uuid]
    return Done()
