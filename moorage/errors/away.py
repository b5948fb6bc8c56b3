"""Errors when a part of the cloud is unavailable: the operator must act."""

from moorage.errors.basis import MoorageError


class Unavailable(MoorageError, code="moorage.unavailable"):
    """A part of the cloud cannot be reached."""


class StoreUnavailable(Unavailable, code="moorage.store_unavailable"):
    """The database of {schema} cannot be reached: {reason}."""

    schema: str
    reason: str


class StoreRefused(StoreUnavailable, code="moorage.store_refused"):
    """The {schema} database server refuses to serve: {reason}; {remedy}.

    A service with such a URL does not start, and does not wait: see `[database] connection`, `[conductor] connection`,
    or the URL that `moorage cell list` shows for the cell.
    """

    #: What to change; a peer of a former release does not send it.
    remedy: str = "check user, password, database name and privileges"


class SchemaInUse(Unavailable, code="moorage.schema_in_use"):
    """The {schema} schema could not be changed: a table has been in use for {seconds} s and blocks: {statement}.

    A transaction that reads or writes this table does not end. End it (MariaDB lists it in
    `information_schema.innodb_trx`), or wait for its end. Then repeat `moorage db upgrade`: it continues where it
    stopped.
    """

    schema: str
    seconds: float
    statement: str


class UpgradeUnderWay(Unavailable, code="moorage.upgrade_under_way"):
    """Another upgrade of the {schema} schema has been in progress for {seconds} s.

    Wait until it has ended, and repeat `moorage db upgrade`, which then has nothing left to do.
    """

    schema: str
    seconds: float


class BusUnavailable(Unavailable, code="moorage.bus_unavailable"):
    """The message bus cannot be reached: {reason}."""

    reason: str


class BusRefused(BusUnavailable, code="moorage.bus_refused"):
    """The broker refuses the connection: {reason}; check the user, the password and the virtual host.

    A service with such a URL does not start, and does not wait: see `transport_url`, or the URL that `moorage cell
    list` shows for the cell.
    """


class NoReply(Unavailable, code="moorage.no_reply"):
    """There was no answer to {method} on {topic} within {seconds} seconds.

    It is unknown whether the request was carried out: repeat it with the same request id.
    """

    topic: str
    method: str
    seconds: float


class NotServed(Unavailable, code="moorage.not_served"):
    """Nobody serves {topic} on the message bus: start {service}.

    The command has asked the broker and sent no request. `moorage service list` and `moorage status` show what runs.
    """

    topic: str
    service: str


class CellUnreachable(Unavailable, code="moorage.cell_unreachable"):
    """The cell {cell} cannot be reached: {reason}."""

    cell: str
    reason: str


class AgentUnreachable(Unavailable, code="moorage.agent_unreachable"):
    """The compute agent {agent} cannot be reached: {reason}."""

    agent: str
    reason: str


class Overloaded(Unavailable, code="moorage.overloaded"):
    """The service has more work than it can take: {reason}."""

    reason: str


class DeadlineExceeded(Unavailable, code="moorage.deadline_exceeded"):
    """The caller's timeout expired {point}, and the request was not carried out.

    An earlier delivery of it may have been carried out: repeat it with the same request id.
    """

    point: str
