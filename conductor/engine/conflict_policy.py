"""What is done when others have written to a consumer between our reading of it and our writing."""

from conductor.engine.steps import Backoff
from moorage import errors

FAIL = "fail"
RETRY = "retry"
COMBINE = "combine"

#: Between two readings of a consumer that others keep writing to. Arbitrary: their writes take milliseconds.
BACKOFF = Backoff(first=0.1, longest=5.0)


def is_placed(conflict: errors.ConsumerGenerationConflict) -> bool:
    """Tell whether nothing has changed, but the consumer has a placement already: reading again would not help."""
    return conflict.named == conflict.found


def asks_again(policy: str, conflict: errors.ConsumerGenerationConflict, conflicts: int, most: int) -> bool:
    """Tell whether what has met its ``conflicts``-th conflict reads the consumer again and writes once more.

    :param most: how often it does under the policy `retry`.
    """
    if policy == FAIL or is_placed(conflict):
        return False
    return policy == COMBINE or conflicts <= most
