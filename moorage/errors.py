"""Every error Moorage raises, in one tree grouped by who must act; the docstring is what the operator reads.

The first paragraph of a class's docstring is its message, with the error's own data filled in. Data is keyword-only
and JSON-safe, so that an error crosses the bus as itself. A ``code`` never changes once it has been released.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, dataclass_transform

Json = Any  # what json.dumps takes: checked by the contract test that sends every error over both buses


class _Blank(dict[str, object]):
    """Stands in for data that an older or newer peer did not send."""

    def __missing__(self, key: str) -> str:
        return "?"


@dataclass_transform(kw_only_default=True)
class MoorageError(Exception):
    """Something in Moorage went wrong."""

    code: ClassVar[str] = "moorage.error"

    def __init__(self, **data: Json) -> None:
        # A newer peer may send data that this version has no name for: it is dropped, as in every reply.
        self.data: dict[str, Json] = {}
        for name in self.field_names():
            if name in data or hasattr(type(self), name):
                self.data[name] = data[name] if name in data else getattr(type(self), name)
        for name, value in self.data.items():
            setattr(self, name, value)
        super().__init__()

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of the data that this error carries."""
        annotations = [vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__)]
        return [name for names in annotations for name in names if name != "code"]

    @property
    def kwargs(self) -> dict[str, Json]:
        """What oslo.messaging sends along and hands to the constructor on the other side."""
        return self.data

    def __str__(self) -> str:
        first_paragraph = inspect.cleandoc(self.__doc__ or "").split("\n\n")[0]
        return " ".join(first_paragraph.split()).format_map(_Blank(self.data))

    def __reduce__(self) -> tuple[Callable[..., "MoorageError"], tuple[type["MoorageError"], dict[str, Json]]]:
        return _rebuild, (type(self), self.data)


def _rebuild(kind: type[MoorageError], data: dict[str, Json]) -> MoorageError:
    return kind(**data)


# --- The message is wrong: whoever sent it must change it -------------------------------------------------------


class CallerError(MoorageError):
    """The request cannot be served as it stands."""

    code = "moorage.caller"


class InvalidRequest(CallerError):
    """The request is invalid at {path}: {reason}."""

    code = "moorage.invalid_request"
    path: str
    reason: str


class NotFound(CallerError):
    """There is no {kind} {name}."""

    code = "moorage.not_found"
    kind: str
    name: str


class ProviderNotFound(NotFound):
    """There is no resource provider {name}."""

    code = "moorage.not_found.resource_provider"
    kind: str = "resource provider"


class ConsumerNotFound(NotFound):
    """There is no consumer {name}."""

    code = "moorage.not_found.consumer"
    kind: str = "consumer"


class ResourceClassNotFound(NotFound):
    """There is no resource class {name}."""

    code = "moorage.not_found.resource_class"
    kind: str = "resource class"


class InstanceNotFound(NotFound):
    """There is no instance {name}."""

    code = "moorage.not_found.instance"
    kind: str = "instance"


class HostNotFound(NotFound):
    """There is no host {name}."""

    code = "moorage.not_found.host"
    kind: str = "host"


class CellNotFound(NotFound):
    """There is no cell {name}."""

    code = "moorage.not_found.cell"
    kind: str = "cell"


class AlreadyExists(CallerError):
    """There is already a {kind} {name}."""

    code = "moorage.already_exists"
    kind: str
    name: str


class InvalidState(CallerError):
    """Not possible now: {reason}."""

    code = "moorage.invalid_state"
    reason: str


class RequestIdReused(CallerError):
    """The request id {request_id} has already been used for a request with other content."""

    code = "moorage.request_id_reused"
    request_id: str


class ConsumerDeleted(CallerError):
    """The consumer {consumer_uuid} has been deleted for good; nothing can be claimed for it any more."""

    code = "moorage.consumer_deleted"
    consumer_uuid: str


# --- It does not fit: ask for something else, or somewhere else ---------------------------------------------------


class PlacementRefused(MoorageError):
    """What was asked for cannot be placed."""

    code = "moorage.refused"


class NoValidHost(PlacementRefused):
    """No valid host was found for {instances} instance(s): {summary}.

    The explanation counts, for each filter, the hosts that it removed, and names the nearest misses. It is only ever
    raised after the host view has caught up with the store and has decided once more.
    """

    code = "moorage.no_valid_host"
    instances: int
    summary: str
    explanation: Mapping[str, Json]


class MaxRetriesExceeded(PlacementRefused):
    """The build of instance {instance_uuid} failed on every host that was tried: {summary}."""

    code = "moorage.max_retries_exceeded"
    instance_uuid: str
    summary: str
    attempts: Sequence[Mapping[str, Json]]


class CapacityExceeded(PlacementRefused):
    """There is not enough room on {count} inventories, the first of them {resource_class} of provider {provider_uuid}.

    ``refusals`` lists every one as ``{provider_uuid, resource_class, asked, free, reason}``.
    """

    code = "moorage.capacity_exceeded"
    provider_uuid: str
    resource_class: str
    count: int
    refusals: Sequence[Mapping[str, Json]]


class InvalidInventory(PlacementRefused):
    """The inventory of {resource_class} on provider {provider_uuid} is invalid: {reason}."""

    code = "moorage.invalid_inventory"
    provider_uuid: str
    resource_class: str
    reason: str


class InventoryInUse(PlacementRefused):
    """The inventory of {resource_class} on provider {provider_uuid} is in use and cannot be removed."""

    code = "moorage.inventory_in_use"
    provider_uuid: str
    resource_class: str


class ProviderInUse(PlacementRefused):
    """The resource provider {provider_uuid} is in use and cannot be deleted."""

    code = "moorage.provider_in_use"
    provider_uuid: str


class BuildFailed(PlacementRefused):
    """The guest of instance {instance_uuid} could not be built on host {host}: {reason}."""

    code = "moorage.build_failed"
    instance_uuid: str
    host: str
    reason: str


# --- The caller's view is stale: read again, then decide ----------------------------------------------------------


class StaleView(MoorageError):
    """What the caller knows has changed in the meantime."""

    code = "moorage.stale"


class ConsumerGenerationConflict(StaleView):
    """The consumer {consumer_uuid} is at generation {found}, not at {named}.

    A generation of null stands for a consumer that does not exist.
    """

    code = "moorage.consumer_generation_conflict"
    consumer_uuid: str
    named: int | None
    found: int | None


class ProviderGenerationConflict(StaleView):
    """The resource provider {provider_uuid} is at generation {found}, not at {named}."""

    code = "moorage.provider_generation_conflict"
    provider_uuid: str
    named: int
    found: int


class ClaimReleased(StaleView):
    """The claim {claim_id} of consumer {consumer_uuid} has been released or replaced."""

    code = "moorage.claim_released"
    consumer_uuid: str
    claim_id: str


# --- Others were faster: the same request, later ------------------------------------------------------------------


class TryAgain(MoorageError):
    """The request could not be served just now; the same may succeed later."""

    code = "moorage.try_again"


class ClaimContention(TryAgain):
    """Other claims were faster {tries} times; ask again with a new request id."""

    code = "moorage.claim_contention"
    tries: int


class RequestInProgress(TryAgain):
    """The request {request_id} is still being worked on; repeat it with the same id."""

    code = "moorage.request_in_progress"
    request_id: str


# --- A part is away: the operator must look ------------------------------------------------------------------------


class Unavailable(MoorageError):
    """A part of the cloud cannot be reached."""

    code = "moorage.unavailable"


class StoreUnavailable(Unavailable):
    """The database of {schema} cannot be reached: {reason}."""

    code = "moorage.store_unavailable"
    schema: str
    reason: str


class BusUnavailable(Unavailable):
    """The message bus cannot be reached: {reason}."""

    code = "moorage.bus_unavailable"
    reason: str


class NoReply(Unavailable):
    """Nobody has answered {method} on {topic} within {seconds} seconds.

    Whether it was carried out is unknown: repeat it with the same request id.
    """

    code = "moorage.no_reply"
    topic: str
    method: str
    seconds: float


class CellUnreachable(Unavailable):
    """The cell {cell} cannot be reached: {reason}."""

    code = "moorage.cell_unreachable"
    cell: str
    reason: str


class Overloaded(Unavailable):
    """The service has more work than it can take: {reason}."""

    code = "moorage.overloaded"
    reason: str


# --- The installation is wrong: the operator must mend it before a service starts ----------------------------------


class ConfigurationError(MoorageError):
    """The configuration is wrong: {reason}."""

    code = "moorage.configuration"
    reason: str


class UnknownPlugin(ConfigurationError):
    """There is no {kind} named {name}; the known ones are: {known}."""

    code = "moorage.unknown_plugin"
    kind: str
    name: str
    known: str
    reason: str = ""


class SchemaMismatch(ConfigurationError):
    """The {schema} schema is at revision {found} and this version needs {needed}: run `moorage db upgrade`."""

    code = "moorage.schema_mismatch"
    schema: str
    found: str
    needed: str
    reason: str = ""


# --- A fault of ours ------------------------------------------------------------------------------------------------


class InternalError(MoorageError):
    """An unexpected fault: {kind}. The log of the service that answered names it under the request id."""

    code = "moorage.internal"
    kind: str


class BrokenPlugin(InternalError):
    """The {plugin} {name} is broken: {kind}.

    It has raised, or has answered something that is no answer, so nothing is known of any host. Disable it, or mend
    it: the log of the service that answered has its traceback under the request id.
    """

    code = "moorage.broken_plugin"
    plugin: str
    name: str


def every_error() -> list[type[MoorageError]]:
    """Return each class of the tree, the root first."""
    found: list[type[MoorageError]] = []
    pending: list[type[MoorageError]] = [MoorageError]
    while pending:
        kind = pending.pop(0)
        found.append(kind)
        pending.extend(kind.__subclasses__())
    return found
