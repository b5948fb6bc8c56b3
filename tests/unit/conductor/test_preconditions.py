"""Test the errors for moves of an instance whose state does not allow them."""

import pytest

from conductor.engine.preconditions import cannot_move
from moorage import ids

UUID, MIGRATION = ids.derived("instance"), ids.derived("migration")


@pytest.mark.parametrize(
    ("state", "first"),
    [
        ("building", "Wait"),
        ("moving", f"Wait for migration {MIGRATION} to end, or abort it if it is a live migration"),
        ("moved", f"Confirm or revert migration {MIGRATION} first"),
        ("shelving", "is forced down; then unshelve it"),
        ("shelved", "Unshelve it"),
        ("unshelving", "Wait"),
        ("rebuilding", "error if its host does not answer"),
    ],
)
def test_the_refusal_of_an_evacuation_says_what_comes_first(state: str, first: str) -> None:
    said = str(cannot_move(UUID, state, "evacuation", MIGRATION))
    assert f"instance {UUID} is {state}; to be evacuated it must be active or error. " in said
    assert first in said


def test_an_instance_in_error_is_not_moved_but_rebuilt_or_evacuated() -> None:
    said = str(cannot_move(UUID, "error", "live-migration"))
    assert "to be moved it must be active. Rebuild it, or evacuate it" in said


def test_of_an_instance_that_is_deleted_there_is_nothing_to_be_done_first() -> None:
    assert cannot_move(UUID, "deleted", "evacuation").reason.endswith("it must be active or error")
