"""``/reshaper``: inventories and allocations of many providers and consumers, in one transaction."""

from moorage import errors
from moorage.model import ReshapedInventories
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.query import canonical_uuid
from placement_store.http.refusals import (
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    PROVIDER_NOT_FOUND,
    ErrorAnswer,
    HTTPRefusal,
)
from placement_store.http.resources.allocations import BY_CONSUMER, puts_of
from placement_store.http.resources.inventories import ALL_INVENTORIES, described
from placement_store.http.resources.resource_providers import providers_first
from placement_store.http.schemas import UUID_PATTERN, Schemas, by_key, document
from placement_store.http.versions import v
from placement_store.reshapes import reshape

_RESHAPED = by_key(UUID_PATTERN, ALL_INVENTORIES, some=True)

_RESHAPE_SCHEMAS = Schemas(
    {
        since: document({"inventories": _RESHAPED, "allocations": BY_CONSUMER[form]}, ("inventories", "allocations"))
        for since, form in {"1.30": "1.28", "1.34": "1.34", "1.38": "1.38"}.items()
    }
)

_ANSWERS: ErrorAnswers = {
    errors.ProviderNotFound: ErrorAnswer(400, phrases=(Phrase.NO_PROVIDER_OF_ALLOCATION,)),
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.NO_CLASS,)),
    errors.ProviderGenerationConflict: ErrorAnswer(
        409, CONCURRENT_UPDATE, (Phrase.PROVIDER_GENERATION, Phrase.RESHAPED_GENERATION)
    ),
    errors.InventoryInUse: ErrorAnswer(409, INVENTORY_IN_USE, (Phrase.UPDATE_CONFLICT, Phrase.INVENTORY_IN_USE)),
}


class ReshaperResource(Resource):
    """Reshapes of trees."""

    path = "/reshaper"

    @DeclaredOperation("placement:reshaper:reshape", since=v("1.30"), body=_RESHAPE_SCHEMAS, answers=_ANSWERS)
    def on_post(self, call: Call) -> OperationResult:
        """Replace inventories of providers and allocations of consumers in one transaction."""
        wanted = _inventories(call)
        puts = puts_of(call.body["allocations"], call.version, self.settings)
        try:
            with providers_first(self.store, {uuid: one.generation for uuid, one in wanted.items()}):
                self.store.once_without_id(
                    lambda connection: reshape.carry_out(connection, wanted, puts, self.store.classes)
                )
        except errors.ProviderNotFound as fault:
            if fault.name not in wanted:
                raise
            phrases = (Phrase.NO_RESHAPED_PROVIDER, Phrase.NO_PROVIDER)
            raise HTTPRefusal(400, before(str(fault), phrases, name=fault.name), PROVIDER_NOT_FOUND) from fault
        return OperationResult(204)


def _inventories(call: Call) -> dict[str, ReshapedInventories]:
    found: dict[str, ReshapedInventories] = {}
    for spelled, sent in call.body["inventories"].items():
        if (uuid := canonical_uuid(spelled)) is None or uuid in found:
            raise HTTPRefusal(400, f"{spelled!r} is no uuid, or names a resource provider for the second time.")
        found[uuid] = ReshapedInventories(
            generation=int(sent["resource_provider_generation"]),
            inventories={name: described(uuid, name, one, call) for name, one in sent["inventories"].items()},
        )
    return found
