"""Serve the names of resource classes and traits: list them, and create and delete custom ones."""

from sqlalchemy import Connection

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
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.db.store import Store, handles, reads


@reads(ListResourceClasses)
def list_resource_classes(connection: Connection, _message: ListResourceClasses) -> list[str]:
    """Return all resource classes by name."""
    return ResourceClassNames.listed(connection)


@reads(ListTraits)
def list_traits(connection: Connection, message: ListTraits) -> list[str]:
    """Return the traits by name: all, or those that match all given conditions."""
    return TraitNames.listed(
        connection, names=message.names, starting_with=message.starting_with or "", associated=message.associated
    )


@handles(EnsureResourceClass, EnsureTrait)
def ensure(store: Store, message: EnsureResourceClass | EnsureTrait) -> Ensured:
    """Create a custom resource class or trait, unless it exists.

    :raises InvalidRequest: it is a standard one, or is not called ``CUSTOM_...``.
    """
    names = store.classes if isinstance(message, EnsureResourceClass) else store.traits
    names.require_custom(message.name)
    return store.once(message, lambda connection: Ensured(created=bool(names.create(connection, {message.name}))))


@handles(DeleteResourceClass, DeleteTrait)
def delete(store: Store, message: DeleteResourceClass | DeleteTrait) -> Done:
    """Delete a custom resource class or trait.

    :raises NotFound: the name does not exist.
    :raises NameInUse: a provider has it.
    :raises InvalidRequest: it is a standard one.
    """
    names = store.classes if isinstance(message, DeleteResourceClass) else store.traits

    def work(connection: Connection) -> Done:
        names.delete(connection, message.name)
        return Done()

    names.require_custom(message.name)
    done = store.once(message, work)
    names.forget()
    return done
