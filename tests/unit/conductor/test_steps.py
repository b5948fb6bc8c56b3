"""Test that the functions of a conductor's steps are found by their marks, exactly one for each step."""

from types import MappingProxyType

import pytest

from conductor.cell import parts
from conductor.cell.parts import STORED_STEPS
from conductor.engine.steps import (
    BUILD,
    CLEAN,
    DELETE,
    ENDED_BY_DELETE,
    KIND_OF_CLASS,
    MOVE,
    REBUILD,
    CommitStep,
    Operation,
    Retry,
    step,
    steps_of,
)

STORED = MappingProxyType({BUILD: ("start",), MOVE: ("start",), REBUILD: ("rebuild",)})


class Base:
    kind: str

    @property
    def unready(self) -> str:
        raise AssertionError("the marks are looked up on the class")

    @step(KIND_OF_CLASS, "rebuild")
    def own(self, operation: Operation) -> CommitStep:
        return lambda _connection: Retry(self.kind)


class Rebuilds(Base):
    kind = REBUILD


class Starts:
    @step((BUILD, MOVE), "start")
    def start(self, operation: Operation) -> CommitStep:
        return lambda _connection: Retry("started")


def test_each_step_of_each_kind_has_its_function() -> None:
    starts, rebuilds = Starts(), Rebuilds()
    assert steps_of([starts, rebuilds], STORED) == {
        (BUILD, "start"): starts.start,
        (MOVE, "start"): starts.start,
        (REBUILD, "rebuild"): rebuilds.own,
    }


def test_a_step_with_two_functions_is_refused() -> None:
    with pytest.raises(TypeError, match="step build start has two functions"):
        steps_of([Starts(), Rebuilds(), Starts()], STORED)


def test_a_stored_step_without_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\[\('rebuild', 'rebuild'\)\]"):
        steps_of([Starts()], STORED)


def test_a_function_whose_step_is_not_among_the_stored_ones_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\[\('move', 'start'\)\]"):
        steps_of([Starts()], {BUILD: ("start",)})


def test_a_deletion_ends_each_kind_of_operation_that_a_cell_records_except_deletions_and_cleanups() -> None:
    assert sorted(ENDED_BY_DELETE) == sorted(set(STORED_STEPS) - {DELETE, CLEAN})


def test_no_module_of_steps_serves_orders_of_a_cell() -> None:
    beside_steps = [kind for kind in parts._ENDPOINTS if kind.__module__.startswith("conductor.cell.steps")]
    assert beside_steps == []
