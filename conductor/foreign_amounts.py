"""What becomes of what others have put on an instance that is deleted: as it is recorded, logged and shown."""

from moorage.amounts import amounts_of, in_words
from moorage.messages import Released


def told(released: Released, *, stay: bool) -> str | None:
    """Return in words what others had put there, and that it has gone or stays; nothing if there was nothing.

    :param stay: whether it was to stay.
    """
    if not released.extras:
        return None
    outcome = "what others had put there stays" if stay else "with it went what others had put there"
    return f"{outcome}: {in_words(amounts_of(released.extras))}"
