"""Test the errors for moves of an instance whose state does not allow them."""

import pytest

from conductor.engine.preconditions import cannot_move
from moorage import ids

UUID, MIGRATION = ids.derived("instance"), ids.derived("migration")


@pytest.mark.parametrize(
    ("state", "first"),
    [
        ("building", "Wait"),
        ("moving", f"Wait for migration {MIGRATION} to end, or abort it if it is a live migration or has failed"),
        ("moved", f"Confirm or revert migration {MIGRATION} first"),
        ("shelving", "is forced down; then unshelve it"),
        ("shelved", "Unshelve it"),
        ("unshelving", "Wait"),
        ("rebuilding", "error if its host does not answer"),
    ],
)
def test_the_refusal_of_an_evacuation_says_what_to_do_first(state: str, first: str) -> None:
    text = str(cannot_move(UUID, state, "evacuation", MIGRATION))
    assert f"instance {UUID} is {state}; to be evacuated it must be active or error. " in text
    assert first in text


def test_an_instance_in_error_is_not_moved_but_rebuilt_or_evacuated() -> None:
    text = str(cannot_move(UUID, "error", "live-migration"))
    assert "to be moved it must be active. Rebuild it, or evacuate it" in text


def test_the_refusal_for_a_deleted_instance_suggests_nothing() -> None:
    assert cannot_move(UUID, "deleted", "evacuation").reason.endswith("it must be active or error")
