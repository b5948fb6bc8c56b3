"""Random and derived uuids, and given ones: a repeated step derives the same ids, in whatever process."""

import uuid

#: The root of all derived ids. Never change it: stored requests are found by ids that are derived from it.
_MOORAGE = uuid.UUID("6f3d1c52-9d0a-4b54-8a0e-2f7f6f0d9a31")


def fresh() -> str:
    """Return a random uuid."""
    return str(uuid.uuid4())


def canonical(text: str) -> str | None:
    """Return a uuid, given in any spelling, in its canonical form; None if the text is no uuid."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def derived(parent: str, *words: object) -> str:
    """Return the uuid derived from ``parent`` and ``words``: the same on every machine."""
    return str(uuid.uuid5(_MOORAGE, "/".join([parent, *map(str, words)])))
