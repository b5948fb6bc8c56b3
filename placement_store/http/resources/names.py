"""Shared operations of traits and resource classes: names, either standard or custom."""

import re
from functools import partial

from sqlalchemy import Connection

from placement_store.db.names import Names
from placement_store.http.operations import Resource
from placement_store.http.refusals import HTTPRefusal

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")
_LONGEST = 255


def require_custom(name: str) -> None:
    """Check that a name has the form of a custom one.

    :raises HTTPRefusal: 400, it has not.
    """
    if not _CUSTOM.fullmatch(name) or len(name) > _LONGEST:
        raise HTTPRefusal(400, f"{name[:_LONGEST]!r} is no name of one's own: CUSTOM_ with A-Z, 0-9 and _ behind it.")


class NamedResource(Resource):
    """A resource whose path has a name in it."""

    def _created(self, names: Names, name: str) -> bool:
        """Create a name unless it exists; return whether it was created."""
        return bool(self.store.once_unnamed(lambda connection: names.create(connection, {name})))

    def _delete(self, names: Names, name: str) -> None:
        """Delete an existing custom name that is not in use."""

        def work(connection: Connection) -> None:
            # A missing name is reported first, even where the name is not custom.
            names.require(connection, {name})
            names.require_custom(name)
            names.delete(connection, name)

        self.store.once_unnamed(work)
        names.forget()

    def _require(self, names: Names, name: str) -> None:
        self.store.read(partial(names.require, names={name}))
