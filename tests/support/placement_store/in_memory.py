"""Serve the model on topic `placement`: an in-memory store with the right answers, for tests that need a store."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from moorage import errors, ids
from moorage.bus.bus import handlers, serves
from moorage.messages import (
    AcceptClaim,
    Claimed,
    CreateResourceProvider,
    DeleteAllocations,
    DeleteResourceProvider,
    Done,
    EndMove,
    GetAllocations,
    GetResourceProvider,
    ListClaims,
    ListProviderTrees,
    PostAllocations,
    PutAllocations,
    ReportProviders,
    Reshape,
    ReshapeByInstructions,
    SetInventories,
    SwapClaim,
)
from moorage.messages.wire import Message, Mutation
from moorage.model import Consumer, Move, ResourceProvider
from moorage.model.inspection import ClaimState
from placement_store.claims.claim import NewClaim
from support.placement_store.model import BeginMove, Claim, Model, Refused, apply

R = TypeVar("R")


def _applied(kind: type[Mutation[R]]) -> Callable[[Any, Any], R]:
    """Return a method that lets the model carry out a message once, and returns the stored answer to repeats.

    Its parameter is of any type, so that fakes may override it with the kind of message that it serves.
    """

    def answer(self: "InMemoryPlacement", message: Mutation[R]) -> R:
        answered: R = self.once(message, lambda: self.carry_out(message))
        return answered

    return serves(kind)(answer)


class StoredAnswers:
    """The answers to requests by their ids, with the digests of the requests."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.answers: dict[str, tuple[bytes, Any]] = {}

    def once(self, message: Mutation[Any], work: Callable[[], R]) -> R:
        """Carry out a request, or return its stored answer."""
        with self.lock:
            if message.request_id not in self.answers:
                self.answers[message.request_id] = message.digest(), work()
            digest, stored = self.answers[message.request_id]
            if digest != message.digest():
                raise errors.RequestIdReused(request_id=message.request_id)
            answer: R = stored
            return answer


class InMemoryPlacement(StoredAnswers):
    """The model behind the methods of the store, with stored answers; it carries out one write at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def carry_out(self, message: Any) -> Any:
        """Let the model carry out a message; of several reasons to refuse it, the first is returned."""
        # The store chooses the ids of claims, so the model must be given them.
        found = [_claimed() for _ in message.new] if isinstance(message, Claim) else _claimed()
        with self.lock:
            try:
                return apply(message, self.model, found)
            except Refused as refusal:
                raise refusal.faults[0] from None

    def call(self, message: Message[R]) -> R:
        """Serve a message, as the store's dispatcher does."""
        answer: R = dict(handlers([self]))[type(message)](message)
        return answer

    def claim_all(self, new: Sequence[NewClaim], *, keep_held: bool = False) -> list[Claimed]:
        """Place all these consumers or none, as a decision does."""
        claimed: list[Claimed] = self.carry_out(Claim(tuple(new), keep_held))
        return claimed

    def begin_move(self, new: NewClaim, move: Move) -> Claimed:
        """Begin a move, as a decision does."""
        claimed: Claimed = self.carry_out(BeginMove(new, move))
        return claimed

    create_resource_provider = _applied(CreateResourceProvider)
    delete_resource_provider = _applied(DeleteResourceProvider)
    set_inventories = _applied(SetInventories)
    report_providers = _applied(ReportProviders)
    reshape = _applied(Reshape)
    reshape_by_instructions = _applied(ReshapeByInstructions)
    put_allocations = _applied(PutAllocations)
    post_allocations = _applied(PostAllocations)
    delete_allocations = _applied(DeleteAllocations)
    swap_claim = _applied(SwapClaim)
    end_move = _applied(EndMove)

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        """Let a host accept a claim; the answer is not stored, because it must be true when it is given."""
        done: Done = self.carry_out(message)
        return done

    # --- Reads ------------------------------------------------------------------------------------------------------

    @serves(GetResourceProvider)
    def get_resource_provider(self, message: GetResourceProvider) -> ResourceProvider:
        """Return one provider."""
        with self.lock:
            if message.uuid not in self.model.providers:
                raise errors.ProviderNotFound(name=message.uuid)
            return self.model.shown(message.uuid)

    @serves(ListProviderTrees)
    def list_provider_trees(self, message: ListProviderTrees) -> list[ResourceProvider]:
        """Return the trees of these providers, parents before their children."""
        with self.lock:
            roots = {self.model.root_of(uuid) for uuid in message.uuids if uuid in self.model.providers}
            return [self.model.shown(uuid) for uuid in self.model.providers if self.model.root_of(uuid) in roots]

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        """Return one consumer."""
        with self.lock:
            if message.consumer_uuid not in self.model.holders:
                raise errors.ConsumerNotFound(name=message.consumer_uuid)
            return self.model.shown_consumer(message.consumer_uuid)

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        """Return claims, and residues if they are wanted; all were made a second ago."""
        with self.lock:
            return [
                ClaimState(
                    consumer_uuid=uuid,
                    consumer_type=holder.consumer_type,
                    generation=holder.generation,
                    claim_id=holder.claim_id,
                    root_provider_uuid=holder.root,
                    node=self.model.providers[holder.root].name if holder.root in self.model.providers else None,
                    owner=holder.owner,
                    accepted_by=holder.accepted_by,
                    accepted_host=holder.accepted_host,
                    age=1.0,
                )
                for uuid, holder in sorted(self.model.holders.items())
                if uuid in (message.consumer_uuids or (uuid,))
                and (holder.claim_id or (message.residues and holder.consumer_type == "RESIDUE"))
                and not (message.unaccepted and holder.accepted_by)
            ]


def _claimed() -> Claimed:
    return Claimed(claim_id=ids.fresh(), consumer_generation=1)
