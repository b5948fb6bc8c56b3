"""Shrinks a story that breaks a promise, by leaving out actions and faults as long as the same promise breaks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from harness.simulation.history import Outcome
from harness.simulation.story import Story

T = TypeVar("T")


def kind(broken: str | None) -> str:
    """Return the kind of a finding: the promise, or the beginning of the text."""
    return (broken or "")[:10]


def shrunk(story: Story, outcome: Outcome, run_story: Callable[[Story], Outcome], tries: int) -> tuple[Story, Outcome]:
    """Return the shortest story found in so many tries with the same kind of finding, and its outcome."""
    left = tries
    found = True
    while found and left > 0:
        found = False
        for smaller in _smaller(story):
            if left <= 0:
                break
            left -= 1
            tried = run_story(smaller)
            if tried.broken and kind(tried.broken) == kind(outcome.broken):
                story, outcome, found = smaller, tried, True
                break
    return story, outcome


def _smaller(story: Story) -> Iterator[Story]:
    """Yield shorter stories, those with the most left out first."""
    for part in _parts(story.actions):
        yield story.without(actions=part)
    for fault in _parts(story.faults):
        yield story.without(faults=fault)


def _parts(whole: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the whole, its halves, their halves, and so on down to single elements, the last ones first."""
    size = len(whole)
    while size:
        for start in reversed(range(0, len(whole), size)):
            yield whole[start : start + size]
        size = size // 2
