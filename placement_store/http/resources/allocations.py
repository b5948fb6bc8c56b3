"""``/allocations`` and ``/resource_providers/{uuid}/allocations``: the allocations of consumers, and of a provider."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from moorage import errors, ids
from moorage.messages import DeleteAllocations, ListProviderAllocations
from moorage.model import ProviderAllocations
from placement_store.allocations import read as consumer_list
from placement_store.allocations.read import Stored
from placement_store.claims import put as puts
from placement_store.claims.put import ANY_GENERATION, AnyGeneration, Put
from placement_store.dispatcher import Dispatcher
from placement_store.http.errors import ErrorAnswers
from placement_store.http.operations import Call, DeclaredOperation, OperationResult, Resource
from placement_store.http.phrases import Phrase, before
from placement_store.http.query import canonical_uuid
from placement_store.http.refusals import ErrorAnswer, HTTPRefusal
from placement_store.http.resources.usages import UNKNOWN
from placement_store.http.schemas import (
    GENERATION,
    MAX_AMOUNT,
    NAME,
    RESOURCE_CLASS,
    UUID,
    UUID_PATTERN,
    Schema,
    Schemas,
    by_key,
    document,
    with_more,
)
from placement_store.http.versions import Version, v
from placement_store.providers import outlines, usages

_AMOUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}
_RESOURCES = by_key(RESOURCE_CLASS["pattern"], _AMOUNT, some=True, short=True)

# Before 1.12, a list.
_LIST: Schema = {
    "type": "array",
    "minItems": 1,
    "items": document(
        {"resource_provider": document({"uuid": UUID}, required=("uuid",)), "resources": _RESOURCES},
        required=("resource_provider", "resources"),
    ),
}
# From 1.12, by provider. Clients send back what they have read, so a generation is accepted and ignored.
_BY_PROVIDER = by_key(
    UUID_PATTERN, document({"generation": GENERATION, "resources": _RESOURCES}, required=("resources",))
)
_SOME_BY_PROVIDER: Schema = {**_BY_PROVIDER, "minProperties": 1}

_OWNER = {"project_id": NAME, "user_id": NAME}
# The providers of each group of the request: accepted and ignored.
_MAPPINGS: Schema = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {"[A-Za-z0-9_-]": {"type": "array", "minItems": 1, "items": UUID}},
}
_CONSUMER_GENERATION: Schema = {"anyOf": [GENERATION, {"type": "null"}]}

_PUT_1_0 = document({"allocations": _LIST}, required=("allocations",))
_PUT_1_8 = with_more(_PUT_1_0, _OWNER, required=tuple(_OWNER))
_PUT_1_12 = with_more(_PUT_1_8, {"allocations": _SOME_BY_PROVIDER})
_ONE_1_13 = with_more(_PUT_1_8, {"allocations": _BY_PROVIDER})
_ONE_1_28 = with_more(_ONE_1_13, {"consumer_generation": _CONSUMER_GENERATION}, required=("consumer_generation",))
_ONE_1_34 = with_more(_ONE_1_28, {"mappings": _MAPPINGS})
_ONE_1_38 = with_more(_ONE_1_34, {"consumer_type": RESOURCE_CLASS}, required=("consumer_type",))

_PUT_SCHEMAS = Schemas(
    {"1.0": _PUT_1_0, "1.8": _PUT_1_8, "1.12": _PUT_1_12, "1.28": _ONE_1_28, "1.34": _ONE_1_34, "1.38": _ONE_1_38}
)

#: Allocations by consumer, as the reshaper takes them too.
BY_CONSUMER = {
    since: by_key(UUID_PATTERN, one)
    for since, one in {"1.13": _ONE_1_13, "1.28": _ONE_1_28, "1.34": _ONE_1_34, "1.38": _ONE_1_38}.items()
}
_POST_SCHEMAS = Schemas({since: {**schema, "minProperties": 1} for since, schema in BY_CONSUMER.items()})

_BAD_NAME: ErrorAnswers = {
    errors.ProviderNotFound: ErrorAnswer(400, phrases=(Phrase.NO_PROVIDER_OF_ALLOCATION,)),
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.NOT_ALLOCATED, Phrase.NO_CLASS)),
}
_BAD_NAME_OF_ONE: ErrorAnswers = {
    **_BAD_NAME,
    errors.ResourceClassNotFound: ErrorAnswer(400, phrases=(Phrase.NOT_ALLOCATED_TO, Phrase.NO_CLASS)),
}

#: The most amounts of a consumer that is written in one transaction with others: they wait for it, and a statement
#: takes a bounded number of uuids. A server has a few amounts. Arbitrary.
_MOST_SHARED = 100

_BY_PROVIDER_SINCE, _GENERATION_SINCE, _TYPE_SINCE = v("1.12"), v("1.28"), v("1.38")


# --- Parsing bodies -------------------------------------------------------------------------------------------------


def puts_of(sent: Mapping[str, Mapping[str, Any]], version: Version, settings: Any) -> dict[str, Put]:
    """Parse the allocations sent for several consumers, by their canonical uuids.

    :raises HTTPRefusal: 400, a consumer is repeated, or a uuid is malformed.
    """
    found: dict[str, Put] = {}
    for spelled, one in sent.items():
        uuid = _new_key(spelled, found, "consumer")
        found[uuid] = put_of(one, version, settings)
    return found


def put_of(sent: Mapping[str, Any], version: Version, settings: Any) -> Put:
    """Parse the allocations sent for one consumer.

    :raises HTTPRefusal: 400, a provider is repeated, or a uuid is malformed.
    """
    amounts: dict[str, dict[str, int]] = {}
    if version >= _BY_PROVIDER_SINCE:
        parts = [(uuid, part["resources"]) for uuid, part in sent["allocations"].items()]
    else:
        parts = [(part["resource_provider"]["uuid"], part["resources"]) for part in sent["allocations"]]
    for spelled, resources in parts:
        # JSON Schema accepts 1.0 as an integer.
        amounts[_new_key(spelled, amounts, "resource provider")] = {n: int(amount) for n, amount in resources.items()}
    described: dict[str, Any] = {
        "project_id": sent.get("project_id", settings.incomplete_consumer_project_id),
        "user_id": sent.get("user_id", settings.incomplete_consumer_user_id),
    }
    first: dict[str, Any] = {"known_over_rpc": False}
    # Older versions leave the type of an existing consumer as it is.
    (described if version >= _TYPE_SINCE else first)["consumer_type"] = sent.get("consumer_type")
    generation: int | AnyGeneration | None = ANY_GENERATION
    if version >= _GENERATION_SINCE:
        generation = None if sent["consumer_generation"] is None else int(sent["consumer_generation"])
    return Put(amounts=amounts, generation=generation, described=described, described_first=first, over_http=True)


def _new_key(spelled: str, known: Mapping[str, object], kind: str) -> str:
    uuid = _required_uuid(spelled, kind)
    if uuid in known:
        raise HTTPRefusal(400, f"The {kind} {uuid} is named twice.")
    return uuid


def _required_uuid(spelled: str, kind: str) -> str:
    if (uuid := canonical_uuid(spelled)) is None:
        phrases = [Phrase.BAD_CONSUMER] if kind == "consumer" else []
        raise HTTPRefusal(400, before(f"The uuid of a {kind} is expected, not {spelled[:255]!r}.", phrases))
    return uuid


# --- The paths ------------------------------------------------------------------------------------------------------


class AllocationsResource(Resource):
    """The allocations of several consumers."""

    path = "/allocations"

    @DeclaredOperation("placement:allocations:manage", since=v("1.13"), body=_POST_SCHEMAS, answers=_BAD_NAME)
    def on_post(self, call: Call) -> OperationResult:
        """Replace the allocations of these consumers, all in one transaction."""
        wanted = puts_of(call.body, call.version, self.settings)
        self.store.once_without_id(lambda connection: puts.write(connection, wanted, self.store.classes))
        return OperationResult(204)


class AllocationsOfConsumerResource(Resource):
    """The allocations of one consumer."""

    path = "/allocations/{consumer_uuid}"

    def __init__(self, store: Dispatcher, *others: Any) -> None:
        super().__init__(store, *others)
        self._write_with_others: Callable[[tuple[str, Put]], None] = store.unnamed_together(
            lambda connection, sent: puts.write_each(connection, sent, store.classes), "allocations"
        )

    def require_path(self, **path: str) -> None:
        """Check that the consumer is named by a uuid.

        :raises HTTPRefusal: 400, it is not.
        """
        _required_uuid(path["consumer_uuid"], "consumer")

    @DeclaredOperation("placement:allocations:list")
    def on_get(self, call: Call, consumer_uuid: str) -> OperationResult:
        """Show the allocations of a consumer; they are empty for one that does not exist."""
        uuid = canonical_uuid(consumer_uuid)
        found = None if uuid is None else self.store.read(lambda connection: self._found(connection, uuid))
        if found is None:
            return OperationResult(body={"allocations": {}}, modified=time.time())
        return OperationResult(body=_shown(found, call.version), modified=found.updated_at)

    @DeclaredOperation("placement:allocations:update", body=_PUT_SCHEMAS, answers=_BAD_NAME_OF_ONE)
    def on_put(self, call: Call, consumer_uuid: str) -> OperationResult:
        """Replace the allocations of a consumer."""
        uuid = _required_uuid(consumer_uuid, "consumer")
        wanted = put_of(call.body, call.version, self.settings)
        if sum(map(len, wanted.amounts.values())) <= _MOST_SHARED:
            self._write_with_others((uuid, wanted))
        else:
            self.store.once_without_id(lambda connection: puts.write(connection, {uuid: wanted}, self.store.classes))
        return OperationResult(204)

    @DeclaredOperation("placement:allocations:delete")
    def on_delete(self, _call: Call, consumer_uuid: str) -> OperationResult:
        """Delete the allocations of a consumer; 404 if it has none."""
        if (uuid := canonical_uuid(consumer_uuid)) is None:
            raise errors.ConsumerNotFound(name=consumer_uuid)
        message = DeleteAllocations(request_id=ids.fresh(), consumer_uuid=uuid)

        def work(connection: Connection) -> None:
            if self._found(connection, uuid) is None:
                raise errors.ConsumerNotFound(name=uuid)
            self.store.run(message, connection)

        self.store.once_without_id(work)
        return OperationResult(204)

    def _found(self, connection: Connection, uuid: str) -> Stored | None:
        """Read a consumer with allocations; null if there is none."""
        try:
            found = consumer_list.get_stored(connection, uuid, self.store.classes)
        except errors.ConsumerNotFound:
            return None
        return found if found.consumer.allocations else None


def _shown(stored: Stored, version: Version) -> dict[str, Any]:
    consumer = stored.consumer
    shown: dict[str, Any] = {
        "allocations": {
            uuid: {"generation": part.generation, "resources": part.resources}
            for uuid, part in consumer.allocations.items()
        }
    }
    if version >= _BY_PROVIDER_SINCE:
        shown |= {"project_id": consumer.project_id, "user_id": consumer.user_id}
    if version >= _GENERATION_SINCE:
        shown["consumer_generation"] = consumer.generation
    if version >= _TYPE_SINCE:
        shown["consumer_type"] = stored.consumer_type or UNKNOWN
    return shown


class AllocationsOfProviderResource(Resource):
    """The allocations of one provider, by consumer."""

    path = "/resource_providers/{uuid}/allocations"

    @DeclaredOperation("placement:resource_providers:allocations:list")
    def on_get(self, call: Call, uuid: str) -> OperationResult:
        """List the allocations of a provider, by consumer."""

        def work(connection: Connection) -> tuple[float, ProviderAllocations]:
            modified = outlines.get(connection, uuid).updated_at
            return modified, usages.of_provider(connection, ListProviderAllocations(uuid=uuid), self.store.classes)

        modified, found = self.store.read(work)
        shown: dict[str, dict[str, Any]] = {}
        for consumer_uuid, held in found.allocations.items():
            shown[consumer_uuid] = {"resources": held.resources}
            if call.version >= _GENERATION_SINCE:
                shown[consumer_uuid]["consumer_generation"] = held.consumer_generation
        return OperationResult(
            body={"resource_provider_generation": found.generation, "allocations": shown}, modified=modified
        )
