"""Ids that follow from other ids, so that a step which is repeated by anyone names the same ones."""

import uuid

#: The root of all derived ids, never to be changed: stored requests are found by what follows from it.
_MOORAGE = uuid.UUID("6f3d1c52-9d0a-4b54-8a0e-2f7f6f0d9a31")


def fresh() -> str:
    """Return a uuid that nobody has used."""
    return str(uuid.uuid4())


def derived(parent: str, *words: object) -> str:
    """Return the uuid that follows from ``parent`` and ``words``: the same for the same, on every machine."""
    return str(uuid.uuid5(_MOORAGE, "/".join([parent, *map(str, words)])))
