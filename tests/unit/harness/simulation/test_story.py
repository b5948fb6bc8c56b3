"""Test that a seed determines a story, and that a story is shrunk to the part that breaks a promise."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.simulation.history import Outcome
from harness.simulation.shrink import shrunk
from harness.simulation.story import Story, draw

SEEDS = st.integers(0, 10_000).map(str)


@given(SEEDS)
@settings(deadline=None)
def test_a_seed_determines_a_story_of_the_requested_length(seed: str) -> None:
    story = draw(seed, 50)
    assert story == draw(seed, 50)
    assert [action.number for action in story.actions] == list(range(50))
    assert all(0 <= fault.after < 50 for fault in story.faults)


@given(SEEDS)
@settings(deadline=None)
def test_the_text_of_a_story_has_all_actions_and_faults(seed: str) -> None:
    story = draw(seed, 20)
    text = story.told()
    assert text[0] == f"seed {seed}"
    assert len(text) == 1 + len(story.actions) + len(story.faults)
    # Leaving out actions keeps all faults.
    shorter = story.without(actions=story.actions[3:])
    assert len(shorter.told()) == 1 + 3 + len(story.faults)


@pytest.mark.parametrize(
    ("seed", "start"), [("today/0", "today/0"), ("today/9", "today/0"), ("today/137", "today/13"), ("today", "today")]
)
def test_a_replayed_history_begins_with_the_same_cloud_as_before(seed: str, start: str) -> None:
    story = draw(seed)
    assert story.start == start
    # So does a story that was shrunk.
    assert story.without(actions=story.actions[1:]).start == start


def broken_if(condition: Callable[[Story], bool]) -> Callable[[Story], Outcome]:
    """Return a run in which promise 1 breaks under a condition, and promise 2 if there are no actions."""

    def run_story(story: Story) -> Outcome:
        broken = "promise 1: broken" if condition(story) else None if story.actions else "promise 2: empty"
        return Outcome(broken, "", 0, 0, 0.0)

    return run_story


@given(SEEDS, st.sets(st.integers(0, 49), min_size=1, max_size=3))
@settings(deadline=None, max_examples=10)
def test_a_story_is_shrunk_to_the_actions_that_break_the_promise(seed: str, needed: set[int]) -> None:
    story = draw(seed, 50)
    run_story = broken_if(lambda tried: needed <= {action.number for action in tried.actions})
    small, outcome = shrunk(story, run_story(story), run_story, tries=2000)
    assert {action.number for action in small.actions} == needed
    assert not small.faults
    assert outcome.broken == "promise 1: broken"


def test_a_fault_that_is_needed_stays() -> None:
    story = next(story for number in range(100) if len((story := draw(str(number), 10)).faults) >= 4)
    run_story = broken_if(lambda tried: bool(tried.actions) and story.faults[1] in tried.faults)
    small, _ = shrunk(story, run_story(story), run_story, tries=2000)
    assert small.faults == [story.faults[1]]
    assert len(small.actions) == 1


@pytest.mark.parametrize("tries", [0, 1, 7])
def test_no_more_stories_are_tried_than_allowed(tries: int) -> None:
    tried: list[Story] = []
    run_story = broken_if(lambda _tried: True)

    def counted(story: Story) -> Outcome:
        tried.append(story)
        return run_story(story)

    story = draw("x", 50)
    shrunk(story, run_story(story), counted, tries=tries)
    assert len(tried) <= tries
