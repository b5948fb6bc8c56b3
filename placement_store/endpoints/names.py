"""Serve the methods of topic `placement` about resource classes and traits."""

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    DeleteResourceClass,
    DeleteTrait,
    Done,
    Ensured,
    EnsureResourceClass,
    EnsureTrait,
    ListResourceClasses,
    ListTraits,
)
from placement_store.db.names import Names, ResourceClassNames, TraitNames
from placement_store.endpoints import StoreEndpoint


class NameEndpoint(StoreEndpoint):
    """Serve resource classes and traits."""

    def __init__(self, database: Database, names: ResourceClassNames) -> None:
        super().__init__(database, names)
        self._traits = TraitNames(database)

    @serves(ListResourceClasses)
    def list_resource_classes(self, _message: ListResourceClasses) -> list[str]:
        """Return all resource classes by name."""
        return self._database.read(self._names.listed)

    @serves(EnsureResourceClass)
    def ensure_resource_class(self, message: EnsureResourceClass) -> Ensured:
        """Create a custom resource class, unless it exists.

        :raises InvalidRequest: it is a standard one, or is not called ``CUSTOM_...``.
        """
        return self._ensure(message, self._names)

    @serves(DeleteResourceClass)
    def delete_resource_class(self, message: DeleteResourceClass) -> Done:
        """Delete a custom resource class.

        :raises ResourceClassNotFound: there is none of that name.
        :raises NameInUse: a provider has an inventory of it.
        :raises InvalidRequest: it is a standard one.
        """
        return self._delete(message, self._names)

    @serves(ListTraits)
    def list_traits(self, message: ListTraits) -> list[str]:
        """Return the traits by name: all, or those that match all given conditions."""
        return self._database.read(
            lambda connection: self._traits.listed(
                connection,
                names=message.names,
                starting_with=message.starting_with or "",
                associated=message.associated,
            )
        )

    @serves(EnsureTrait)
    def ensure_trait(self, message: EnsureTrait) -> Ensured:
        """Create a custom trait, unless it exists.

        :raises InvalidRequest: it is a standard one, or is not called ``CUSTOM_...``.
        """
        return self._ensure(message, self._traits)

    @serves(DeleteTrait)
    def delete_trait(self, message: DeleteTrait) -> Done:
        """Delete a custom trait.

        :raises TraitNotFound: there is none of that name.
        :raises NameInUse: a provider has it.
        :raises InvalidRequest: it is a standard one.
        """
        return self._delete(message, self._traits)

    def _ensure(self, message: EnsureResourceClass | EnsureTrait, names: Names) -> Ensured:
        names.require_custom(message.name)
        return self._once(message, lambda connection: Ensured(created=bool(names.create(connection, {message.name}))))

    def _delete(self, message: DeleteResourceClass | DeleteTrait, names: Names) -> Done:
        def work(connection: Connection) -> Done:
            names.delete(connection, message.name)
            return Done()

        names.require_custom(message.name)
        done = self._once(message, work)
        names.forget()
        return done
