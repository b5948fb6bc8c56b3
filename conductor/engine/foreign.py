"""What becomes of what others have put on an instance that gives up what it holds: as it is recorded and shown."""

from moorage.model import Allocations
from moorage.model.amounts import amounts_of, in_words


def told(extras: Allocations, *, stay: bool) -> str | None:
    """Return in words what others had put there, and that it has gone or stays; nothing if there was nothing.

    :param stay: whether it was to stay.
    """
    if not extras:
        return None
    outcome = "what others had put there stays" if stay else "with it went what others had put there"
    return f"{outcome}: {in_words(amounts_of(extras))}"
