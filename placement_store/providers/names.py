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
from placement_store.db.names import Names, ResourceClassNames, TraitNames
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


@handles(EnsureResourceClass)
def ensure_resource_class(store: Store, message: EnsureResourceClass) -> Ensured:
    """Create a custom resource class unless it exists; see :func:`_ensure` for the errors."""
    return _ensure(store, message, store.classes)


@handles(EnsureTrait)
def ensure_trait(store: Store, message: EnsureTrait) -> Ensured:
    """Create a custom trait unless it exists; see :func:`_ensure` for the errors."""
    return _ensure(store, message, store.traits)


@handles(DeleteResourceClass)
def delete_resource_class(store: Store, message: DeleteResourceClass) -> Done:
    """Delete a custom resource class; see :func:`_delete` for the errors."""
    return _delete(store, message, store.classes)


@handles(DeleteTrait)
def delete_trait(store: Store, message: DeleteTrait) -> Done:
    """Delete a custom trait; see :func:`_delete` for the errors."""
    return _delete(store, message, store.traits)


def _ensure(store: Store, message: EnsureResourceClass | EnsureTrait, names: Names) -> Ensured:
    """Create a name, unless it exists.

    :raises InvalidRequest: it is a standard one, or is not called ``CUSTOM_...``.
    """
    names.require_custom(message.name)
    return store.once(message, lambda connection: Ensured(created=bool(names.create(connection, {message.name}))))


def _delete(store: Store, message: DeleteResourceClass | DeleteTrait, names: Names) -> Done:
    """Delete a name.

    :raises NotFound: there is none of that name.
    :raises NameInUse: a provider has it.
    :raises InvalidRequest: it is a standard one.
    """

    def work(connection: Connection) -> Done:
        names.delete(connection, message.name)
        return Done()

    names.require_custom(message.name)
    done = store.once(message, work)
    names.forget()
    return done
