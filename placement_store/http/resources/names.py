"""Shared operations of traits and resource classes: names, either standard or custom."""

from functools import partial

from sqlalchemy import Connection

from moorage import errors
from placement_store.db.names import Names
from placement_store.http.operations import Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import HTTPRefusal


class NamedResource(Resource):
    """A resource whose path has a name in it."""

    def _created(self, names: Names, name: str) -> bool:
        """Create a name unless it exists; return whether it was created."""
        return bool(self.store.once_without_id(lambda connection: names.create(connection, {name})))

    def _delete(self, names: Names, name: str, standard: Phrase) -> None:
        """Delete an existing custom name that is not in use; for a standard one, refuse with the phrase."""

        def work(connection: Connection) -> None:
            # A missing name is reported first, even if the name is not custom.
            names.require(connection, {name})
            try:
                names.require_custom(name)
            except errors.InvalidRequest as fault:
                raise HTTPRefusal(400, before(str(fault), [standard], name=name)) from fault
            names.delete(connection, name)

        self.store.once_without_id(work)
        names.forget()

    def _require(self, names: Names, name: str) -> None:
        self.store.read(partial(names.require, names={name}))
