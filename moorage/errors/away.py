"""Errors when a part of the cloud is away: the operator must act."""

from moorage.errors.basis import MoorageError


class Unavailable(MoorageError):
    """A part of the cloud cannot be reached."""

    code = "moorage.unavailable"


class StoreUnavailable(Unavailable):
    """The database of {schema} cannot be reached: {reason}."""

    code = "moorage.store_unavailable"
    schema: str
    reason: str


class StoreRefused(StoreUnavailable):
    """The server of the {schema} database refuses: {reason}; check the user, the password and the database's name.

    A service does not start with such a URL, and does not wait: see `[database] connection`, `[conductor] connection`,
    or what `moorage cell list` shows of the cell.
    """

    code = "moorage.store_refused"


class SchemaInUse(Unavailable):
    """The {schema} schema could not be changed: a table has been in use for {seconds} s, in the way of: {statement}.

    A transaction that reads or writes this table does not end. End it (MariaDB names it in
    `information_schema.innodb_trx`), or let it end, and repeat `moorage db upgrade`: it goes on where it has stopped.
    """

    code = "moorage.schema_in_use"
    schema: str
    seconds: float
    statement: str


class UpgradeUnderWay(Unavailable):
    """Another upgrade of the {schema} schema has been under way for {seconds} s.

    Wait for its end, and repeat `moorage db upgrade`, which then has nothing left to do.
    """

    code = "moorage.upgrade_under_way"
    schema: str
    seconds: float


class BusUnavailable(Unavailable):
    """The message bus cannot be reached: {reason}."""

    code = "moorage.bus_unavailable"
    reason: str


class BusRefused(BusUnavailable):
    """The broker refuses: {reason}; check the user, the password and the virtual host.

    A service does not start with such an address, and does not wait: see `transport_url`, or what `moorage cell list`
    shows of the cell.
    """

    code = "moorage.bus_refused"


class NoReply(Unavailable):
    """Nobody has answered {method} on {topic} within {seconds} seconds.

    Whether it was carried out is unknown: repeat it with the same request id.
    """

    code = "moorage.no_reply"
    topic: str
    method: str
    seconds: float


class NotServed(Unavailable):
    """Nobody serves {topic} on the message bus: start {service}.

    A command has asked the broker, and has sent nothing. `moorage service list` and `moorage status` say what runs.
    """

    code = "moorage.not_served"
    topic: str
    service: str


class CellUnreachable(Unavailable):
    """The cell {cell} cannot be reached: {reason}."""

    code = "moorage.cell_unreachable"
    cell: str
    reason: str


class AgentUnreachable(Unavailable):
    """The compute agent {agent} cannot be reached: {reason}."""

    code = "moorage.agent_unreachable"
    agent: str
    reason: str


class Overloaded(Unavailable):
    """The service has more work than it can take: {reason}."""

    code = "moorage.overloaded"
    reason: str


class DeadlineExceeded(Unavailable):
    """The caller's time was over {point}, and the request was not carried out.

    An earlier sending of it may have been: repeat it with the same request id.
    """

    code = "moorage.deadline_exceeded"
    point: str
