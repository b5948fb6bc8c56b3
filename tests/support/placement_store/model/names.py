"""Resource classes and traits: creation and deletion."""

from typing import Any

from moorage import errors
from moorage.messages import DeleteResourceClass, DeleteTrait, Done, Ensured, EnsureResourceClass, EnsureTrait
from support.placement_store.model.basis import Model, apply
from support.placement_store.model.faults import refuse


@apply.register
def ensure(message: EnsureResourceClass | EnsureTrait, model: Model, _found: Any) -> Ensured:
    """Create a custom resource class or trait."""
    names = model.classes if isinstance(message, EnsureResourceClass) else model.traits
    created = message.name not in names
    names.add(message.name)
    return Ensured(created=created)


@apply.register
def delete_class(message: DeleteResourceClass, model: Model, _found: Any) -> Done:
    """Delete a custom resource class that no provider has an inventory of."""
    refuse(model.unknown([message.name]))
    used = any(message.name in provider.inventories for provider in model.providers.values())
    refuse([errors.NameInUse(kind="resource class", name=message.name)] * used)
    model.classes.remove(message.name)
    return Done()


@apply.register
def delete_trait(message: DeleteTrait, model: Model, _found: Any) -> Done:
    """Delete a custom trait that no provider has."""
    refuse(model.traitless([message.name]))
    used = any(message.name in provider.traits for provider in model.providers.values())
    refuse([errors.NameInUse(kind="trait", name=message.name)] * used)
    model.traits.remove(message.name)
    return Done()
