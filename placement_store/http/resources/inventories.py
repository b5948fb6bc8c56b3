"""``/resource_providers/{uuid}/inventories``: the inventories of a provider."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import DeleteInventories, DeleteInventory, SetInventories, SetInventory
from moorage.model import Inventory
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import CONCURRENT_UPDATE, INVENTORY_IN_USE, ErrorAnswer, HTTPRefusal
from placement_store.http.resources.resource_providers import ProviderScopedResource, path_of, providers_first
from placement_store.http.schemas import (
    GENERATION,
    MAX_AMOUNT,
    RESOURCE_CLASS,
    Schema,
    Schemas,
    by_key,
    document,
    with_more,
)
from placement_store.http.versions import v
from placement_store.providers import rows as providers
from placement_store.providers.inventories import MAX_RATIO
from placement_store.providers.outlines import Outline

_AMOUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}

#: One inventory. Clients send back what they have read, so a generation is accepted even if it is not required.
INVENTORY = document(
    {
        "resource_provider_generation": GENERATION,
        "total": _AMOUNT,
        "reserved": {"type": "integer", "minimum": 0, "maximum": MAX_AMOUNT},
        "min_unit": _AMOUNT,
        "max_unit": _AMOUNT,
        "step_size": _AMOUNT,
        "allocation_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_RATIO},
    },
    required=("total",),
)
#: Inventories by resource class.
_INVENTORIES = by_key(RESOURCE_CLASS["pattern"], INVENTORY, short=True)
#: All inventories of a provider, as the reshaper takes them too.
ALL_INVENTORIES = document(
    {"resource_provider_generation": GENERATION, "inventories": _INVENTORIES},
    required=("resource_provider_generation", "inventories"),
)

#: The body of ``POST /resource_providers/{uuid}/inventories``.
_CREATE_SCHEMAS = Schemas(
    {"1.0": with_more(INVENTORY, {"resource_class": RESOURCE_CLASS}, required=("resource_class",))}
)
#: The body of ``PUT /resource_providers/{uuid}/inventories``.
_REPLACE_SCHEMAS = Schemas({"1.0": ALL_INVENTORIES})
#: The body of ``PUT /resource_providers/{uuid}/inventories/{resource_class}``.
_UPDATE_SCHEMAS = Schemas({"1.0": with_more(INVENTORY, {}, required=("resource_provider_generation",))})

_ALL_RESERVED_SINCE = v("1.26")
_CREATE_ANSWERS: ErrorAnswers = {
    errors.AlreadyExists: ErrorAnswer(409, CONCURRENT_UPDATE, (Phrase.CREATE_CONFLICT,)),
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.INVENTORY_NOT_CREATED, Phrase.NO_CLASS)),
    errors.InvalidInventory: ErrorAnswer(400, phrases=(Phrase.INVENTORY_NOT_CREATED, Phrase.RESERVED_TOO_MUCH)),
}
_INVALID = ErrorAnswer(400, phrases=(Phrase.INVENTORY_NOT_UPDATED, Phrase.RESERVED_TOO_MUCH))
_REPLACE_ANSWERS: ErrorAnswers = {
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.UNKNOWN_CLASS, Phrase.NO_CLASS)),
    errors.InventoryInUse: ErrorAnswer(409, INVENTORY_IN_USE, (Phrase.UPDATE_CONFLICT, Phrase.INVENTORY_IN_USE)),
    errors.InvalidInventory: _INVALID,
}
_UPDATE_ANSWERS: ErrorAnswers = {
    errors.InventoryNotFound: ErrorAnswer(400, phrases=(Phrase.NO_INVENTORY_RECORD,)),
    errors.InvalidInventory: _INVALID,
}
_DELETE_ANSWERS: ErrorAnswers = {
    errors.InventoryInUse: ErrorAnswer(409, CONCURRENT_UPDATE, (Phrase.INVENTORY_IN_USE,)),
    errors.InventoryNotFound: ErrorAnswer(404, phrases=(Phrase.NO_INVENTORY_TO_DELETE,)),
    errors.ResourceClassNotFound: ErrorAnswer(404, phrases=(Phrase.NO_INVENTORY_TO_DELETE, Phrase.NO_CLASS)),
}

#: Inventories by resource class.
Held = Mapping[str, Inventory]


def described(
    uuid: str, resource_class: str, sent: Mapping[str, Any], call: Call, phrase: Phrase = Phrase.INVENTORY_NOT_UPDATED
) -> Inventory:
    """Parse an inventory; ``phrase`` begins the text of a refusal.

    :raises HTTPRefusal: 400, its capacity is below 1, which is allowed from 1.26.
    """
    fields = {name: value for name, value in sent.items() if name in Inventory.__struct_fields__}
    # Not strictly: JSON Schema accepts 1.0 as an integer.
    inventory = msgspec.convert(fields, Inventory, strict=False)
    # A capacity out of range is refused by the store.
    if call.version < _ALL_RESERVED_SINCE and inventory.capacity < 1:
        sentence = f"The inventory of {resource_class} leaves nothing that could be allocated."
        raise HTTPRefusal(400, before(sentence, [phrase, Phrase.RESERVED_ALL], uuid=uuid))
    return inventory


class _WithInventories(ProviderScopedResource):
    def part(self, connection: Connection, id_: int) -> Held:
        """Read the inventories of a provider."""
        rows = providers.inventories_of(connection, [id_]).get(id_, {})
        held = {self.store.classes.name_of(number, connection): row.described for number, row in rows.items()}
        return dict(sorted(held.items()))


class InventoriesResource(_WithInventories):
    """The inventories of a provider."""

    path = "/resource_providers/{uuid}/inventories"

    @DeclaredOperation("placement:resource_providers:inventories:list")
    def on_get(self, _call: Call, uuid: str) -> OperationResult:
        """List the inventories of a provider."""
        return self._shown(*self.present(uuid))

    @DeclaredOperation("placement:resource_providers:inventories:create", body=_CREATE_SCHEMAS, answers=_CREATE_ANSWERS)
    def on_post(self, call: Call, uuid: str) -> OperationResult:
        """Create the inventory of one class; a generation in the body is ignored."""
        name = call.body["resource_class"]
        with providers_first(self.store, {uuid: None}):
            inventory = described(uuid, name, call.body, call, Phrase.INVENTORY_NOT_CREATED)
            message = SetInventory(
                request_id=ids.fresh(), uuid=uuid, resource_class=name, inventory=inventory, expected="absent"
            )
            provider, held = self.after(message)
        return _one(provider, held[name], status=201, location=f"{path_of(uuid)}/inventories/{name}")

    @DeclaredOperation(
        "placement:resource_providers:inventories:update", body=_REPLACE_SCHEMAS, answers=_REPLACE_ANSWERS
    )
    def on_put(self, call: Call, uuid: str) -> OperationResult:
        """Replace all inventories of a provider."""
        generation = int(call.body["resource_provider_generation"])
        with providers_first(self.store, {uuid: generation}):
            wanted = {name: described(uuid, name, sent, call) for name, sent in call.body["inventories"].items()}
            message = SetInventories(request_id=ids.fresh(), uuid=uuid, generation=generation, inventories=wanted)
            return self._shown(*self.after(message))

    @DeclaredOperation("placement:resource_providers:inventories:delete", since=v("1.5"), below=405)
    def on_delete(self, _call: Call, uuid: str) -> OperationResult:
        """Delete all inventories of a provider."""
        message = DeleteInventories(request_id=ids.fresh(), uuid=uuid)
        self.store.once_without_id(partial(self.store.run, message))
        return OperationResult(204)

    @staticmethod
    def _shown(provider: Outline, held: Held) -> OperationResult:
        body = {
            "resource_provider_generation": provider.generation,
            "inventories": {name: msgspec.structs.asdict(inventory) for name, inventory in held.items()},
        }
        return OperationResult(body=body, modified=provider.updated_at)


class InventoryOfClassResource(_WithInventories):
    """The inventory of one resource class."""

    path = "/resource_providers/{uuid}/inventories/{resource_class}"

    @DeclaredOperation("placement:resource_providers:inventories:show")
    def on_get(self, _call: Call, uuid: str, resource_class: str) -> OperationResult:
        """Show the inventory of one class."""
        provider, held = self.present(uuid)
        if resource_class not in held:
            raise errors.InventoryNotFound(name=resource_class, provider_uuid=uuid)
        return _one(provider, held[resource_class])

    @DeclaredOperation("placement:resource_providers:inventories:update", body=_UPDATE_SCHEMAS, answers=_UPDATE_ANSWERS)
    def on_put(self, call: Call, uuid: str, resource_class: str) -> OperationResult:
        """Replace the inventory of one class, which must exist."""
        generation = int(call.body["resource_provider_generation"])
        with providers_first(self.store, {uuid: generation}):
            message = SetInventory(
                request_id=ids.fresh(),
                uuid=uuid,
                resource_class=resource_class,
                inventory=described(uuid, resource_class, call.body, call),
                generation=generation,
                expected="present",
            )
            provider, held = self.after(message)
        return _one(provider, held[resource_class])

    @DeclaredOperation("placement:resource_providers:inventories:delete", answers=_DELETE_ANSWERS)
    def on_delete(self, _call: Call, uuid: str, resource_class: str) -> OperationResult:
        """Delete the inventory of one class."""
        message = DeleteInventory(request_id=ids.fresh(), uuid=uuid, resource_class=resource_class)
        with providers_first(self.store, {uuid: None}):
            self.store.once_without_id(partial(self.store.run, message))
        return OperationResult(204)


def _one(provider: Outline, inventory: Inventory, **more: Any) -> OperationResult:
    body = {"resource_provider_generation": provider.generation, **msgspec.structs.asdict(inventory)}
    return OperationResult(body=body, modified=provider.updated_at, **more)
