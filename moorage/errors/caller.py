"""Errors in a message: the sender must change it."""

from moorage.errors.basis import MoorageError


class CallerError(MoorageError, code="moorage.caller"):
    """The request cannot be served as it stands."""


class InvalidRequest(CallerError, code="moorage.invalid_request"):
    """The request is invalid at {path}: {reason}."""

    path: str
    reason: str


class NotFound(CallerError, code="moorage.not_found"):
    """There is no {kind} {name}."""

    kind: str
    name: str


class ProviderNotFound(NotFound, code="moorage.not_found.resource_provider"):
    """There is no resource provider {name}."""

    kind: str = "resource provider"


class ConsumerNotFound(NotFound, code="moorage.not_found.consumer"):
    """There is no consumer {name}."""

    kind: str = "consumer"


class ResourceClassNotFound(NotFound, code="moorage.not_found.resource_class"):
    """There is no resource class {name}."""

    kind: str = "resource class"


class TraitNotFound(NotFound, code="moorage.not_found.trait"):
    """There is no trait {name}."""

    kind: str = "trait"


class InventoryNotFound(NotFound, code="moorage.not_found.inventory"):
    """The resource provider {provider_uuid} has no inventory of {name}."""

    kind: str = "inventory"
    provider_uuid: str


class InstanceNotFound(NotFound, code="moorage.not_found.instance"):
    """There is no instance {name}."""

    kind: str = "instance"


class HostNotFound(NotFound, code="moorage.not_found.host"):
    """There is no host {name}."""

    kind: str = "host"


class CellNotFound(NotFound, code="moorage.not_found.cell"):
    """There is no cell {name}."""

    kind: str = "cell"


class ServerGroupNotFound(NotFound, code="moorage.not_found.server_group"):
    """There is no server group {name}."""

    kind: str = "server group"


class HostAggregateNotFound(NotFound, code="moorage.not_found.host_aggregate"):
    """There is no host aggregate {name}."""

    kind: str = "host aggregate"


class MigrationNotFound(NotFound, code="moorage.not_found.migration"):
    """There is no migration {name}."""

    kind: str = "migration"


class AlreadyExists(CallerError, code="moorage.already_exists"):
    """The {kind} {name} exists already."""

    kind: str
    name: str


class ZoneConflict(CallerError, code="moorage.zone_conflict"):
    """Host {host} is in availability zone {zone} by aggregate {aggregate}, and cannot be in zone {other} as well."""

    host: str
    zone: str
    aggregate: str
    other: str


class RequestTooLarge(CallerError, code="moorage.request_too_large"):
    """The request {method} has {size} bytes, but a message can have at most {limit}; it was not sent."""

    method: str
    size: int
    limit: int


class ReplyTooLarge(CallerError, code="moorage.reply_too_large"):
    """The answer to {method} has {size} bytes or list entries, but a message can have at most {limit}.

    Request lists in parts (`limit` and `after`). An order that is answered with this error was carried out.
    """

    method: str
    size: int
    limit: int


class InvalidState(CallerError, code="moorage.invalid_state"):
    """Not possible now: {reason}."""

    reason: str


class RequestIdReused(CallerError, code="moorage.request_id_reused"):
    """The request id {request_id} has already been used for a request with other content."""

    request_id: str


class ConsumerDeleted(CallerError, code="moorage.consumer_deleted"):
    """The consumer {consumer_uuid} has been deleted for good; nothing can be claimed for it any more."""

    consumer_uuid: str


class NameInUse(CallerError, code="moorage.name_in_use"):
    """The {kind} {name} is in use and cannot be deleted."""

    kind: str
    name: str
