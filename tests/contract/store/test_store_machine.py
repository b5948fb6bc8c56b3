"""Test the store against a model by a state machine: two writers, one after the other or concurrently.

`make test` takes twelve hundred steps on each database; with MACHINE=long in the environment it is thirty thousand.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec import structs
from sqlalchemy import select
from support.placement_store.builders import Store
from support.placement_store.messages import CLASSES, CONSUMERS, NAMES, PROVIDERS, TRAITS
from support.placement_store.model import BeginMove, Claim, Model, groups
from support.placement_store.move_messages import MovingWrites
from support.placement_store.store_comparison import (
    Outcome,
    Seen,
    agree,
    answer,
    differences,
    is_noticeable,
    moved_trees,
    shows,
    underneath,
)

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import GetAllocations, ListResourceProviders, ListServerGroups, ProvidersReported, ReportProviders
from moorage.messages.wire import Mutation
from moorage.model import Inventory, ProviderReport
from placement_store.allocations.placed import instances_on
from placement_store.claims import begin_move
from placement_store.claims import claim as claims
from placement_store.db.names import ResourceClassNames
from placement_store.dispatcher import Dispatcher
from placement_store.schema import changes

LONG = os.environ.get("MACHINE") == "long"
RUNS, STEPS = (600, 50) if LONG else (30, 40)
#: Shrinking a failure takes minutes. A long run finds the failure again in Hypothesis' database, and shrinks it.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *[Phase.shrink] * LONG]

#: The seeds of messages; the integers that Hypothesis prefers would give little variety.
SEEDS = st.randoms(use_true_random=True).map(lambda random: random.getrandbits(32))


class Writer:
    """A process that writes to the store, with its own connections and its own cache of names."""

    def __init__(self, database: Database) -> None:
        self._database, self._names = database, ResourceClassNames(database)
        self._dispatcher = Dispatcher(database, self._names)

    def call(self, message: Any) -> Any:
        """Let the store serve a message, as if it came over the bus."""
        if isinstance(message, Claim):
            return self._database.write(lambda connection: claims.claim(connection, message.new, self._names))
        if isinstance(message, BeginMove):
            return self._database.write(
                lambda connection: begin_move.begin(connection, message.new, message.move, self._names)
            )
        return self._dispatcher.call(message)

    def outcome(self, message: Any) -> Outcome:
        """Return the answer to a message, or the error."""
        try:
            return self.call(message)
        except errors.MoorageError as fault:
            return fault


class TwoWriters(RuleBasedStateMachine):
    """Makes random writes by two writers, one after the other or concurrently."""

    #: The same database, opened twice; set by the test that runs the machine.
    databases: Sequence[Database]
    together: ThreadPoolExecutor

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(self.databases[0])
        self.store.empty()
        self.writers = [Writer(database) for database in self.databases]
        self.model = Model()
        #: The content after the last step, and after this one if it has been read.
        self.seen = Seen({}, {}, {}, {}, {}, {})
        self.state: Seen | None = None
        self.told = self.newest_change()

    @initialize(totals=st.lists(st.integers(2, 12), min_size=9, max_size=9), is_pool=st.booleans())
    def begin(self, totals: list[int], *, is_pool: bool) -> None:
        """Begin with a host of two providers and a host of one, so that the first writes concern something.

        :param is_pool: whether there is also a pool of three providers.
        """
        inventories = [
            {name: Inventory(total=total) for name, total in zip(CLASSES, totals[start:], strict=False)}
            for start in (0, 3)
        ]
        told = [
            ProviderReport(uuid=PROVIDERS[0], name=NAMES[0], inventories=inventories[0], traits=(TRAITS[0],)),
            ProviderReport(uuid=PROVIDERS[1], name=NAMES[1], inventories={}, parent_provider_uuid=PROVIDERS[0]),
            ProviderReport(uuid=PROVIDERS[2], name=NAMES[2], inventories=inventories[1]),
        ]
        for number, total in enumerate(totals[6:], 3) if is_pool else ():
            pool = {CLASSES[0]: Inventory(total=total)}
            above = None if number == 3 else PROVIDERS[3]
            one = ProviderReport(
                uuid=PROVIDERS[number], name=NAMES[number], inventories=pool, parent_provider_uuid=above
            )
            told.append(one)
        self.do(0, ReportProviders(request_id=ids.fresh(), providers=tuple(told)))

    # --- Steps ------------------------------------------------------------------------------------------------------

    @rule(seed=SEEDS, writer=st.integers(0, 1))
    def one_writes(self, seed: int, writer: int) -> None:
        message = MovingWrites(self.model, Random(seed)).any()
        outcome = self.do(writer, message)
        if seed % 4 == 0 and isinstance(message, Mutation) and not isinstance(outcome, errors.MoorageError):
            assert self.writers[1 - writer].outcome(message) == outcome, "the same request got another answer"

    @rule(seeds=st.tuples(SEEDS, SEEDS))
    def two_write_at_the_same_moment(self, seeds: tuple[int, int]) -> None:
        first, second = (MovingWrites(self.model, Random(seed)).any() for seed in seeds)
        outcomes = self.at_once(first, second)
        note(f"{first}\n{second}\n  -> {outcomes}")
        orders = [
            model
            for order in ([(first, outcomes[0]), (second, outcomes[1])], [(second, outcomes[1]), (first, outcomes[0])])
            for of_two_moments in (False, True)
            if (model := self.after(order, of_two_moments=of_two_moments)) is not None
        ]
        assert orders, f"{first}\n  and\n{second}\n  gave\n{outcomes}\n  which is the outcome of neither order"
        self.state = state = self.look()
        fitting = [model for model in orders if shows(model, state)]
        assert fitting, (
            f"{first}\n  and\n{second}\n  gave\n{outcomes}\n  and left another state than either order:\n"
            f"{[differences(model, state) for model in orders]}"
        )
        self.model = fitting[0]

    def do(self, writer: int, message: Any) -> Outcome:
        """Send a message to the store and to the model, whose outcomes must agree."""
        outcome = self.writers[writer].outcome(message)
        note(f"{message}\n  -> {outcome}")
        expected = answer(self.model, message, outcome)
        assert agree(outcome, expected), f"{message}\n  gave\n{outcome!r}\n  and should have given\n{expected!r}"
        return outcome

    def at_once(self, *messages: Any) -> list[Outcome]:
        """Let each writer send its message, both at the same time."""
        gate = threading.Barrier(len(messages))

        def send(writer: Writer, message: Any) -> Outcome:
            gate.wait(10)
            return writer.outcome(message)

        return list(self.together.map(send, self.writers, messages))

    def after(self, order: Sequence[tuple[Any, Outcome]], *, of_two_moments: bool) -> Model | None:
        """Return the model after these writes in this order, or None if its answers would differ from the outcomes.

        :param of_two_moments: whether a report that comes second found some providers as reported before the other
            write. A report compares without a lock, then locks only different providers; the next report finds the
            rest.
        """
        model, mixed = self.model.copy(), None
        for message, outcome in order:
            if isinstance(outcome, errors.ClaimContention) and isinstance(message, Claim | BeginMove):
                continue  # because of the concurrent write; it changes nothing and names no reason
            left = self.left_alone(message) if of_two_moments and message is order[1][0] else {}
            if left:
                others = tuple(one for one in message.providers if one.uuid not in left)
                message = structs.replace(message, providers=others)
            expected = answer(model, message, outcome)
            if left and isinstance(expected, ProvidersReported):
                expected = ProvidersReported(generations=expected.generations | left)
            if isinstance(outcome, ProvidersReported) and isinstance(expected, ProvidersReported) and mixed is None:
                mixed = outcome, expected
            elif not agree(outcome, expected):
                return None
        return model if mixed is None or self.is_of_two_moments(*mixed, model) else None

    def left_alone(self, message: Any) -> dict[str, int]:
        """Return the generations of the providers that are as reported before both writes, by uuid."""
        if not isinstance(message, ReportProviders):
            return {}
        left = {}
        for one in message.providers:
            if (before := self.model.providers.get(one.uuid)) is not None and before.name == one.name:
                alone = structs.replace(message, providers=(one,), gone=())
                told = answer(self.model.copy(), alone, None)
                if isinstance(told, ProvidersReported) and told.generations[one.uuid] == before.generation:
                    left[one.uuid] = before.generation
        return left

    def is_of_two_moments(self, outcome: ProvidersReported, expected: ProvidersReported, end: Model) -> bool:
        """Return whether a report's answer is right for each provider, before the other write or after it.

        The report reads unchanged providers before it locks the ones that it changes, and the other writer may have
        written in between. So it returns generations from before that write, and generations from after it.
        """

        def is_right(uuid: str, found: int) -> bool:
            before, after = self.model.providers.get(uuid), end.providers.get(uuid)
            was_changed = before is not None and before.generation != expected.generations[uuid]
            late = was_changed and after is not None and after.generation == found
            return late or found == expected.generations[uuid]

        same = outcome.generations.keys() == expected.generations.keys()
        return same and all(is_right(uuid, found) for uuid, found in outcome.generations.items())

    # --- Invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        state = self.state or self.look()
        assert state.providers == {uuid: self.model.shown(uuid) for uuid in self.model.providers}
        assert state.consumers == {uuid: self.model.shown_consumer(uuid) for uuid in self.model.holders}
        assert state.groups == groups.shown(self.model)
        # The model does not know in which order one message, or two at once, have created providers.
        self.model.providers = dict(sorted(self.model.providers.items(), key=lambda item: state.seqs[item[0]]))
        self.compare(self.seen, state, at_once=self.state is not None)
        self.seen, self.state = state, None

    def compare(self, before: Seen, after: Seen, *, at_once: bool) -> None:
        """Check that generations and ``seq`` only grow, the feed has each change, and nothing is over-committed."""
        told, self.told = self.told, self.newest_change()
        in_the_feed = self.changed_since(told)
        for uuid in before.providers.keys() | after.providers.keys():
            then, now = before.providers.get(uuid), after.providers.get(uuid)
            (id_, old), (new_id, new) = before.seqs.get(uuid, (None, -1)), after.seqs.get(uuid, (None, -1))
            if id_ == new_id:
                assert new >= old
                assert now is not None
                assert then is not None
                assert now.generation >= then.generation
                assert then == now or new > old, f"{uuid} has changed, and its seq has not moved"
            if (id_, old) != (new_id, new):
                assert {id_, new_id} - {None} <= in_the_feed, f"the feed does not contain {uuid}"
        for uuid in before.placed.keys() | after.placed.keys():
            if before.placed.get(uuid) != after.placed.get(uuid) and is_noticeable(before, after, uuid):
                assert moved_trees(before, after) & {uuid}, f"the instances on {uuid} have changed, and no seq has"
        for uuid in before.consumers.keys() & after.consumers.keys():
            assert after.consumers[uuid].generation >= before.consumers[uuid].generation
        for pair, (capacity, used) in after.amounts.items():
            capacity_before, used_before = before.amounts.get(pair, (0.0, 0))
            # One writer may have created this inventory, and the other reduced it.
            shrunk = capacity < capacity_before or (at_once and pair not in before.amounts)
            assert used <= capacity or used <= used_before or shrunk, f"{pair} is over-committed: {used} of {capacity}"

    # --- Reading ------------------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """Read everything by messages, and the rest by SQL."""
        listed = self.writers[0].call(ListResourceProviders())
        rows, sums, described, uuids_there = self.store.database.read(underneath)
        known = {*CONSUMERS, *uuids_there}
        consumers = {uuid: self.writers[1].outcome(GetAllocations(consumer_uuid=uuid)) for uuid in sorted(known)}
        uuids = {row.id: row.uuid for row in rows}
        assert {pair: row.used for pair, row in described.items() if row.used} == sums, "used is not what is allocated"
        return Seen(
            providers={provider.uuid: provider for provider in listed},
            consumers={u: found for u, found in consumers.items() if not isinstance(found, errors.ConsumerNotFound)},
            groups={state.group.uuid: state for state in self.writers[1].call(ListServerGroups())},
            seqs={row.uuid: (row.id, row.seq) for row in rows},
            amounts={
                (uuids[provider_id], class_id): ((row.total - row.reserved) * row.allocation_ratio, row.used)
                for (provider_id, class_id), row in described.items()
            },
            placed=self.placed({row.uuid: row.id for row in rows}),
        )

    def placed(self, ids_of: dict[str, int]) -> dict[str, int]:
        counts = self.store.database.read(lambda connection: instances_on(connection, list(ids_of.values())))
        return {uuid: count for uuid, id_ in ids_of.items() if (count := counts[id_])}

    def newest_change(self) -> int:
        return self.store.scalar(select(changes.c.id).order_by(changes.c.id.desc()).limit(1)) or 0

    def changed_since(self, number: int) -> set[int]:
        query = select(changes.c.resource_provider_id).where(changes.c.id > number)
        return set(self.store.database.read(lambda connection: connection.scalars(query).all()))


@pytest.mark.timeout(7200 if LONG else 900)
def test_two_writers_get_the_answers_of_the_model_and_nothing_is_over_committed(
    database: Database, other_process: Store
) -> None:
    with ThreadPoolExecutor(2) as together:
        TwoWriters.databases, TwoWriters.together = (database, other_process.database), together
        run_state_machine_as_test(
            TwoWriters,
            settings=settings(
                max_examples=RUNS,
                stateful_step_count=STEPS,
                deadline=None,
                phases=PHASES,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
