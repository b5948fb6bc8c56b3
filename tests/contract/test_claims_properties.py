"""Properties of the placement store that no sequence of writes may break, on SQLite."""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from placement_builders import Store

from moorage import errors, ids
from moorage.database import Database
from moorage.model import Inventory
from placement_store.schema import MAIN

CLASSES = ("VCPU", "DISK_GB")
PROVIDERS = [ids.derived("provider", number) for number in range(3)]
CONSUMERS = [ids.derived("consumer", number) for number in range(4)]

providers = st.sampled_from(PROVIDERS)
consumers = st.sampled_from(CONSUMERS)
resources = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 5), min_size=1)
amounts = st.dictionaries(providers, resources, max_size=3)
some_amounts = st.dictionaries(providers, resources, min_size=1, max_size=2)
#: The generation named is mostly the present one, and now and then it is not.
staleness = st.sampled_from([0, 0, 0, 0, 1])

Held = dict[tuple[str, str], int]


@dataclass
class Known:
    """A consumer as it must be."""

    generation: int = 1
    held: Held = field(default_factory=dict)
    claim_id: str | None = None
    root: str | None = None
    accepted_by: str | None = None

    def unclaim(self) -> None:
        self.claim_id = self.root = self.accepted_by = None


def flat(described: dict[str, dict[str, int]]) -> Held:
    return {(provider, name): amount for provider, part in described.items() for name, amount in part.items()}


class Writes(RuleBasedStateMachine):
    """Random writes, each of which either does exactly what it says or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(f"sqlite:///{Path(self.folder.name) / 'main.sqlite'}", "main")
        MAIN.upgrade(self.database)
        self.store = Store(self.database)
        self.known: dict[str, Known] = {}
        self.attempts: list[str] = []
        self.buried: set[str] = set()
        self.capacity: dict[tuple[str, str], int] = {}
        self.shrunk: set[tuple[str, str]] = set()
        self.seen: dict[str, tuple[int, int]] = {}

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    @initialize(totals=st.lists(st.integers(1, 12), min_size=6, max_size=6))
    def begin(self, totals: list[int]) -> None:
        for number, uuid in enumerate(PROVIDERS):
            described = {name: totals[2 * number + position] for position, name in enumerate(CLASSES)}
            self.store.provider(uuid=uuid, **described)
            self.capacity |= {(uuid, name): total for name, total in described.items()}

    # --- What is expected -----------------------------------------------------------------------------------------

    def total(self) -> Counter[tuple[str, str]]:
        return sum((Counter(known.held) for known in self.known.values()), Counter())

    def fits(self, changes: dict[str, Held]) -> bool:
        """Whether no inventory grows beyond its capacity."""
        before = self.total()
        after = before.copy()
        for uuid, held in changes.items():
            after.subtract(Counter(self.known[uuid].held if uuid in self.known else {}))
            after.update(Counter(held))
        return all(after[pair] <= max(self.capacity[pair], before[pair]) for pair in after)

    def named(self, uuid: str, stale: int) -> int | None:
        known = self.known.get(uuid)
        if known is None:
            return stale or None
        return known.generation + stale

    def expect(self, write: Any, expected: type[errors.MoorageError] | None) -> Any:
        if expected is None:
            return write()
        with pytest.raises(expected) as caught:
            write()
        assert type(caught.value) is expected
        return None

    def refusal(self, changes: dict[str, Held], stale: int) -> type[errors.MoorageError] | None:
        for uuid in changes:
            # A named generation is compared before anything else; a tombstone is found where no row is.
            if stale:
                return errors.ConsumerDeleted if uuid in self.buried else errors.ConsumerGenerationConflict
        if not self.fits(changes):
            return errors.CapacityExceeded
        return errors.ConsumerDeleted if self.buried & set(changes) else None

    def written(self, uuid: str, held: Held) -> Known:
        known = self.known.get(uuid)
        if known is None:
            known = self.known[uuid] = Known()
        else:
            known.generation += 1
        known.held = held
        return known

    def residue(self, known: Known) -> Held:
        """What a claim leaves on its host where the guest may still run."""
        if known.claim_id is None or known.accepted_by is None or known.accepted_by in self.buried:
            return {}
        return {pair: amount for pair, amount in known.held.items() if pair[0] == known.root}

    def left(self, known: Known, residue: Held, uuid: str | None) -> None:
        assert uuid == (known.accepted_by if residue else None)
        if uuid is not None:
            self.known[uuid] = Known(held=residue, root=known.root, accepted_by=uuid)

    # --- Writes ---------------------------------------------------------------------------------------------------

    @rule(uuid=consumers, wanted=amounts, stale=staleness)
    def put(self, uuid: str, wanted: dict[str, dict[str, int]], stale: int) -> None:
        changes = {uuid: flat(wanted)}
        refusal = self.refusal(changes, stale)
        self.expect(lambda: self.store.put(uuid, wanted, self.named(uuid, stale)), refusal)
        if refusal is None:
            known = self.written(uuid, changes[uuid])
            if known.root not in wanted:
                known.unclaim()

    @rule(pair=st.lists(consumers, min_size=2, max_size=2, unique=True), wanted=st.tuples(amounts, amounts))
    def post(self, pair: list[str], wanted: tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]) -> None:
        described = dict(zip(pair, wanted, strict=True))
        changes = {uuid: flat(part) for uuid, part in described.items()}
        refusal = self.refusal(changes, 0)
        message = {uuid: self.store.wanted(part, self.named(uuid, 0)) for uuid, part in described.items()}
        self.expect(lambda: self.store.post(message), refusal)
        if refusal is None:
            for uuid, held in changes.items():
                known = self.written(uuid, held)
                if known.root not in described[uuid]:
                    known.unclaim()

    @rule(uuid=consumers, wanted=some_amounts, stale=staleness)
    def claim(self, uuid: str, wanted: dict[str, dict[str, int]], stale: int) -> None:
        changes = {uuid: flat(wanted)}
        known = self.known.get(uuid)
        refusal = self.refusal(changes, stale)
        if not stale and known is not None and known.accepted_by is not None:
            refusal = errors.InvalidState
        named = self.named(uuid, stale)
        answer = self.expect(lambda: self.store.claim(uuid, wanted, consumer_generation=named), refusal)
        if refusal is None:
            known = self.written(uuid, changes[uuid])
            assert answer.consumer_generation == known.generation
            known.claim_id, known.root, known.accepted_by = answer.claim_id, next(iter(wanted)), None

    @precondition(lambda self: any(known.claim_id for known in self.known.values()))
    @rule(data=st.data(), wanted=some_amounts, guest=st.sampled_from(["gone", "here", "left behind"]))
    def swap(self, data: st.DataObject, wanted: dict[str, dict[str, int]], guest: str) -> None:
        claimed = sorted(uuid for uuid, known in self.known.items() if known.claim_id)
        uuid = data.draw(st.sampled_from(claimed))
        known = self.known[uuid]
        assert known.root is not None
        assert known.claim_id is not None
        released = {known.root: {name: amount for (p, name), amount in known.held.items() if p == known.root}}
        after = {pair: amount for pair, amount in known.held.items() if pair[0] != known.root}
        for pair, amount in flat(wanted).items():
            after[pair] = after.get(pair, 0) + amount
        residue = self.residue(known) if guest == "left behind" else {}
        changes = {uuid: after, **({str(known.accepted_by): residue} if residue else {})}
        refusal: type[errors.MoorageError] | None = None if self.fits(changes) else errors.CapacityExceeded
        if known.accepted_by is not None and guest == "here":
            refusal = errors.InvalidState
        claim_id, how = known.claim_id, {"guest_gone": guest == "gone", "leave_residue": guest == "left behind"}
        answer = self.expect(lambda: self.store.swap(uuid, claim_id, released, wanted, **how), refusal)
        if refusal is None:
            self.left(known, residue, answer.residue_uuid)
            self.written(uuid, after)
            known.claim_id, known.root, known.accepted_by = answer.claim_id, next(iter(wanted)), None

    @precondition(lambda self: self.known)
    @rule(data=st.data(), again=st.booleans(), right=st.booleans())
    def accept(self, data: st.DataObject, again: bool, right: bool) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[uuid]
        attempt = known.accepted_by
        if attempt is None or not again:
            attempt = ids.derived("attempt", len(self.attempts))
            self.attempts.append(attempt)
        claim_id = known.claim_id if right and known.claim_id else ids.fresh()
        stands = claim_id == known.claim_id and known.accepted_by in (None, attempt)
        self.expect(lambda: self.store.accept(uuid, claim_id, attempt), None if stands else errors.ClaimReleased)
        if stands:
            known.accepted_by = attempt

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def learn_that_a_guest_is_gone(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.attempts))
        self.store.delete(attempt, for_good=True)
        self.known.pop(attempt, None)
        self.buried.add(attempt)

    @rule(uuid=consumers)
    def release_what_nobody_has_accepted(self, uuid: str) -> None:
        known = self.known.get(uuid)
        stands = known is not None and known.claim_id is not None
        claim_id = known.claim_id if known and known.claim_id else ids.fresh()
        refusal: type[errors.MoorageError] | None = None if stands else errors.ClaimReleased
        if known is not None and known.accepted_by is not None:
            refusal = errors.InvalidState
        self.expect(lambda: self.store.delete(uuid, claim_id=claim_id, unaccepted=True), refusal)
        if refusal is None:
            self.written(uuid, {}).unclaim()

    @rule(
        uuid=consumers,
        for_good=st.booleans(),
        by_claim=st.sampled_from(["none", "right", "wrong"]),
        leave=st.booleans(),
    )
    def delete(self, uuid: str, for_good: bool, by_claim: str, leave: bool) -> None:
        known = self.known.get(uuid)
        claim_id = None
        if by_claim != "none":
            claim_id = known.claim_id if by_claim == "right" and known and known.claim_id else ids.fresh()
        refusal: type[errors.MoorageError] | None = None
        if claim_id is not None and (known is None or known.claim_id != claim_id):
            again = known is None and for_good and uuid in self.buried
            refusal = None if again else errors.ClaimReleased
        elif known is None and not for_good:
            refusal = errors.ConsumerNotFound
        residue = self.residue(known) if leave and known is not None else {}
        how = {"for_good": for_good, "claim_id": claim_id, "leave_residue": leave}
        released = self.expect(lambda: self.store.delete(uuid, **how), refusal)
        if refusal is None and known is not None:
            self.left(known, residue, released.residue_uuid)
        if refusal is None and for_good:
            self.known.pop(uuid, None)
            self.buried.add(uuid)
        elif refusal is None and known is not None and (known.held or known.claim_id):
            self.written(uuid, {}).unclaim()

    @rule(number=st.integers(0, 2), totals=st.lists(st.integers(1, 12), min_size=2, max_size=2))
    def resize_provider(self, number: int, totals: list[int]) -> None:
        uuid = PROVIDERS[number]
        described = {name: Inventory(total=total) for name, total in zip(CLASSES, totals, strict=True)}
        self.store.set_inventories(uuid, self.store.generation(uuid), **described)
        self.capacity |= {(uuid, name): inventory.total for name, inventory in described.items()}
        self.shrunk |= {pair for pair, amount in self.total().items() if amount > self.capacity[pair]}

    # --- What must always hold --------------------------------------------------------------------------------------

    @invariant()
    def everyone_holds_what_the_last_write_that_succeeded_said(self) -> None:
        for uuid in {*CONSUMERS, *self.attempts, *self.known}:
            if uuid not in self.known:
                self.expect(lambda uuid=uuid: self.store.consumer(uuid), errors.ConsumerNotFound)
                continue
            found, known = self.store.consumer(uuid), self.known[uuid]
            assert flat({p: dict(part.resources) for p, part in found.allocations.items()}) == known.held
            assert (found.generation, found.claim_id, found.root_provider_uuid, found.accepted_by) == (
                known.generation,
                known.claim_id,
                known.root,
                known.accepted_by,
            )

    @invariant()
    def what_is_used_is_the_sum_of_the_allocations_and_never_more_than_there_is(self) -> None:
        report = self.store.audit()
        assert not report.drifted
        assert {(f.provider_uuid, f.resource_class) for f in report.overcommitted} <= self.shrunk

    @invariant()
    def generations_and_seq_never_fall_back(self) -> None:
        for uuid in {pair[0] for pair in self.capacity}:
            now = (self.store.generation(uuid), self.store.seq(uuid))
            before = self.seen.get(uuid, (0, 0))
            assert now[0] >= before[0]
            assert now[1] >= before[1]
            self.seen[uuid] = now


def test_no_sequence_of_writes_breaks_what_must_always_hold() -> None:
    run_state_machine_as_test(
        Writes,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
