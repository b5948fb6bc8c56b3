"""Builders for the tests of server groups: hosts, and members that are placed, moved and deleted."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moorage import ids
from moorage.messages import EndMove, GetServerGroup, MoveEnded, ServerGroupState
from moorage.model import GroupPolicy, Move, ServerGroup
from placement_store.claims import begin_move, end_move
from placement_store.claims.claim import NewClaim
from placement_store.schema import hosts
from placement_store.server_groups import rows as groups
from placement_store.server_groups.rows import OccupiedRoot
from support.placement_store.builders import Store, request

ONE = {"VCPU": 1}


@dataclass
class Member:
    """An instance with what its test knows about it."""

    uuid: str
    #: Its claim, and the host of the claim.
    claim_id: str
    host: str
    #: The migration that holds its source, and the source.
    migration: str | None = None
    source: str | None = None


class Groups:
    """Server groups of a store, with members that hold one VCPU each."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dispatcher = store.dispatcher
        self.members: dict[str, Member] = {}

    @staticmethod
    def group(policy: GroupPolicy = "anti-affinity", most: int = 1) -> ServerGroup:
        return ServerGroup(uuid=ids.fresh(), policy=policy, max_server_per_host=most)

    def host(self, *, down: bool = False, **inventories: int) -> str:
        """Create a host with its compute node, by default with 1000 VCPU, and return the uuid of the node."""
        held: dict[str, Any] = inventories or {"VCPU": 1000}
        uuid = self.store.provider(**held)
        self.store.register_host(uuid, forced_down=down)
        return uuid

    def force_down(self, host: str, *, down: bool = True) -> None:
        statement = hosts.update().where(hosts.c.compute_node_uuid == host).values(forced_down=down)
        self.store.database.write(lambda connection: connection.execute(statement))

    # --- Members ------------------------------------------------------------------------------------------------------

    def claim(self, group: ServerGroup | None, host: str, uuid: str | None = None) -> Member:
        return self.claim_all(group, [host], [uuid])[0]

    def claim_all(
        self, group: ServerGroup | None, hosts: Sequence[str], uuids: Sequence[str | None] = ()
    ) -> list[Member]:
        """Claim for several members at once, one on each of these hosts."""
        named = [uuid or ids.fresh() for uuid in (uuids or [None] * len(hosts))]
        found = {uuid: self.members[uuid] for uuid in named if uuid in self.members}
        new = [
            self.store.new_claim(uuid, {host: ONE}, group=group, **self._known(uuid, found))
            for uuid, host in zip(named, hosts, strict=True)
        ]
        claimed = self.store.claim_all(new)
        for uuid, host, made in zip(named, hosts, claimed, strict=True):
            self.members[uuid] = Member(uuid, str(made.claim_id), host)
        return [self.members[uuid] for uuid in named]

    def _known(self, uuid: str, found: dict[str, Member]) -> dict[str, Any]:
        return {"consumer_generation": self.store.consumer(uuid).generation} if uuid in found else {}

    def accept(self, member: Member) -> None:
        self.store.accept(member.uuid, member.claim_id, ids.fresh())

    def swap(self, member: Member, host: str, **more: Any) -> str | None:
        """Swap a member's claim to another host, in a move or not; return the residue that was left, if any."""
        if member.migration is not None:
            more |= {"migration_uuid": member.migration, "held": request({str(member.source): ONE})}
        claimed = self.store.swap(member.uuid, member.claim_id, {member.host: ONE}, {host: ONE}, **more)
        member.claim_id, member.host = claimed.claim_id, host
        return claimed.residue_uuid

    def release(self, member: Member) -> None:
        """Release everything that a member holds, as a shelving does."""
        self.store.delete(member.uuid, claim_id=member.claim_id)

    def delete(self, member: Member) -> None:
        """Delete a member for good, with its migration."""
        self.store.delete(
            member.uuid, for_good=True, migration_uuids=() if member.migration is None else (member.migration,)
        )
        del self.members[member.uuid]

    # --- Moves --------------------------------------------------------------------------------------------------------

    def move(self, member: Member, host: str) -> None:
        """Begin to move a member to a host or, if it is already there, to resize it."""
        if self.store.consumer(member.uuid).accepted_by is None:
            self.accept(member)
        new, move = self.moving(member, host)
        begun = self.store.database.write(lambda c: begin_move.begin(c, new, move, self.store.names))
        member.migration, member.source = move.migration_uuid, member.host
        member.claim_id, member.host = begun.claim_id, host

    def moving(self, member: Member, host: str) -> tuple[NewClaim, Move]:
        """Return the claim and the move that begin the move of a member to a host."""
        move = Move(
            migration_uuid=ids.fresh(), kind="resize", claim_id=member.claim_id, held=request({member.host: ONE})
        )
        generation = self.store.consumer(member.uuid).generation
        return self.store.new_claim(member.uuid, {host: ONE}, consumer_generation=generation), move

    def confirm(self, member: Member, **more: Any) -> MoveEnded:
        return self._end(member, "confirm", **{"guest_gone": True} | more)

    def revert(self, member: Member, **more: Any) -> MoveEnded:
        return self._end(member, "revert", **{"guest_gone": True} | more)

    def _end(self, member: Member, outcome: Any, **more: Any) -> MoveEnded:
        message = EndMove(
            request_id=ids.fresh(),
            consumer_uuid=member.uuid,
            migration_uuid=str(member.migration),
            claim_id=member.claim_id,
            outcome=outcome,
            held=request({str(member.source): ONE}),
            claimed=request({member.host: ONE}),
            **more,
        )
        ended = self.store.database.write(lambda connection: end_move.end(connection, message, self.store.names))
        if outcome == "revert":
            member.host = str(member.source)
        member.claim_id, member.migration, member.source = ended.claim_id, None, None
        return ended

    # --- Where they are -----------------------------------------------------------------------------------------------

    def shown(self, group: ServerGroup) -> ServerGroupState:
        return self.dispatcher.call(GetServerGroup(uuid=group.uuid))

    def occupancy(self, group: ServerGroup, *besides: Member) -> dict[str, OccupiedRoot]:
        left_out = {member.uuid for member in besides}
        found = self.store.database.read(lambda connection: groups.occupancies(connection, {group.uuid: left_out}))
        return found[group.uuid].roots

    def places(self) -> dict[str, set[str]]:
        """Return the hosts on which the members or their migrations hold something, from their allocations only."""
        found: dict[str, set[str]] = {}
        for member in self.members.values():
            consumers = [uuid for uuid in (member.uuid, member.migration) if uuid is not None]
            found[member.uuid] = {host for uuid in consumers for host in self.store.held(uuid)}
        return found

    def on_hosts(self) -> dict[str, set[str]]:
        """Return the members that hold allocations on each host."""
        found: dict[str, set[str]] = defaultdict(set)
        for uuid, there in self.places().items():
            for host in there:
                found[host].add(uuid)
        return found
