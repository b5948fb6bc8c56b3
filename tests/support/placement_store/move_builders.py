"""Builders for the tests of moves: an instance on its source, and short forms of the messages that move it."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select

from moorage import errors, ids
from moorage.messages import Claimed, EndMove, MoveEnded, Released
from moorage.model import Move
from placement_store.claims.claim import NewClaim
from placement_store.schema import consumers
from support.placement_store.builders import Amounts, Store, request

#: The amounts of instances on their hosts, and the used amounts of an empty host.
SMALL: dict[str, Any] = {"VCPU": 2, "MEMORY_MB": 2048}
LARGE = {"VCPU": 4, "MEMORY_MB": 4096}
FREE = {"VCPU": 0, "MEMORY_MB": 0}


def disk(pool: str, amount: int) -> dict[str, dict[str, int]]:
    return {pool: {"DISK_GB": amount}}


def row(store: Store, uuid: str) -> Any:
    """Return a consumer's row, because no message shows all of it."""
    query = select(consumers).where(consumers.c.uuid == uuid)
    return store.database.read(lambda connection: connection.execute(query).one())


class Server:
    """A server on a host and a pool, whose claim a host has accepted."""

    def __init__(self, store: Store, host: str, pool: str) -> None:
        self.store, self.uuid, self.attempt = store, ids.fresh(), ids.fresh()
        self.claimed: Amounts = {host: SMALL, **disk(pool, 20)}
        self.claim_id = store.claim(self.uuid, self.claimed).claim_id
        store.accept(self.uuid, self.claim_id, self.attempt)

    def others_put(self, amounts: Amounts) -> "Server":
        """Write new allocations for it, as other clients do."""
        self.store.put(self.uuid, amounts, self.store.consumer(self.uuid).generation)
        return self

    def delete(self, **more: Any) -> Released:
        """Delete it as its conductor does."""
        fields = {"for_good": True, "claimed_with": {self.claim_id: request(self.claimed)}} | more
        return self.store.delete(self.uuid, **fields)


@dataclass
class Moving:
    """An instance that is moved, and what its conductor would have on record about the move."""

    store: Store
    #: The amounts that its request claimed on the source, and the amounts claimed on the current destination.
    held: Amounts
    uuid: str = field(default_factory=ids.fresh)
    migration: str = field(default_factory=ids.fresh)
    #: The attempts of source and destination.
    attempt: str = field(default_factory=ids.fresh)
    next_attempt: str = field(default_factory=ids.fresh)
    claimed: Amounts = field(default_factory=dict)
    source_claim: str = ""
    claim_id: str = ""
    generation: int = 0

    def build(self, **more: Any) -> "Moving":
        """Claim the source, and let its host accept it; the first provider is the host's."""
        claimed = self.store.claim(self.uuid, self.held, **more)
        self.source_claim, self.generation = claimed.claim_id, claimed.consumer_generation
        self.store.accept(self.uuid, self.source_claim, self.attempt, "source")
        return self

    # --- Messages -------------------------------------------------------------------------------------------------

    def new(self, claimed: Amounts, **more: Any) -> NewClaim:
        return self.store.new_claim(
            self.uuid, claimed, **{"consumer_generation": self.generation, "owner": "mover"} | more
        )

    def move(self, **more: Any) -> Move:
        fields: dict[str, Any] = {
            "migration_uuid": self.migration,
            "kind": "cold-migration",
            "claim_id": self.source_claim,
            "held": request(self.held),
        }
        return Move(**fields | more)

    def ending(self, outcome: str, **more: Any) -> EndMove:
        fields: dict[str, Any] = {
            "request_id": ids.fresh(),
            "consumer_uuid": self.uuid,
            "migration_uuid": self.migration,
            "claim_id": self.claim_id,
            "outcome": outcome,
            "held": request(self.held),
            "claimed": request(self.claimed),
        }
        return EndMove(**fields | more)

    # --- Steps ----------------------------------------------------------------------------------------------------

    def begin(self, claimed: Amounts, *, root: str | None = None, new: Any = None, **more: Any) -> Claimed:
        """Begin the move; the first provider is the destination's root unless ``root`` is given."""
        rooted = {} if root is None else {"root": root}
        wanted, move = self.new(claimed, **rooted, **(new or {})), self.move(**more)
        answer = self.store.begin_move(wanted, move)
        self.claimed, self.claim_id, self.generation = claimed, answer.claim_id, answer.consumer_generation
        return answer

    def swap(self, claimed: Amounts, **more: Any) -> Claimed:
        """Swap the destination for the next one."""
        fields = {"migration_uuid": self.migration, "held": request(self.held)} | more
        answer = self.store.swap(self.uuid, self.claim_id, self.claimed, claimed, **fields)
        self.claimed, self.claim_id, self.generation = claimed, answer.claim_id, answer.consumer_generation
        return answer

    def accept(self) -> None:
        """Let the destination's host accept its claim."""
        self.store.accept(self.uuid, self.claim_id, self.next_attempt, "destination")

    def confirm(self, **more: Any) -> MoveEnded:
        return self.store.dispatcher.call(self.ending("confirm", **{"guest_gone": True} | more))

    def revert(self, **more: Any) -> MoveEnded:
        return self.store.dispatcher.call(self.ending("revert", **more))

    # --- Reads ----------------------------------------------------------------------------------------------------

    @property
    def amounts(self) -> dict[str, dict[str, int]]:
        """Return the allocations of the instance."""
        return self.store.held(self.uuid)

    @property
    def migrations(self) -> dict[str, dict[str, int]]:
        """Return the allocations of the migration; empty if there is no migration."""
        try:
            return self.store.held(self.migration)
        except errors.ConsumerNotFound:
            return {}

    def is_buried(self) -> bool:
        """Return whether the migration was deleted for good."""
        try:
            self.store.put(self.migration, {})
        except errors.ConsumerDeleted:
            return True
        except errors.ConsumerGenerationConflict:
            return False
        self.store.delete(self.migration)
        return False
