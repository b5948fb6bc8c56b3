"""Errors in a message: the sender must change it."""

from moorage.errors.basis import MoorageError


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


class TraitNotFound(NotFound):
    """There is no trait {name}."""

    code = "moorage.not_found.trait"
    kind: str = "trait"


class InventoryNotFound(NotFound):
    """The resource provider {provider_uuid} has no inventory of {name}."""

    code = "moorage.not_found.inventory"
    kind: str = "inventory"
    provider_uuid: str


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


class ServerGroupNotFound(NotFound):
    """There is no server group {name}."""

    code = "moorage.not_found.server_group"
    kind: str = "server group"


class HostAggregateNotFound(NotFound):
    """There is no host aggregate {name}."""

    code = "moorage.not_found.host_aggregate"
    kind: str = "host aggregate"


class MigrationNotFound(NotFound):
    """There is no migration {name}."""

    code = "moorage.not_found.migration"
    kind: str = "migration"


class AlreadyExists(CallerError):
    """There is already a {kind} {name}."""

    code = "moorage.already_exists"
    kind: str
    name: str


class ZoneConflict(CallerError):
    """Host {host} is in availability zone {zone} by aggregate {aggregate}, and cannot be in zone {other} as well."""

    code = "moorage.zone_conflict"
    host: str
    zone: str
    aggregate: str
    other: str


class RequestTooLarge(CallerError):
    """The request {method} has {size} bytes, but a message can have at most {limit}; it was not sent."""

    code = "moorage.request_too_large"
    method: str
    size: int
    limit: int


class ReplyTooLarge(CallerError):
    """The answer to {method} has {size} bytes, but a message can have at most {limit}.

    Request lists in parts (`limit` and `after`). An order that is answered with this error was carried out.
    """

    code = "moorage.reply_too_large"
    method: str
    size: int
    limit: int


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


class NameInUse(CallerError):
    """The {kind} {name} is in use and cannot be deleted."""

    code = "moorage.name_in_use"
    kind: str
    name: str
