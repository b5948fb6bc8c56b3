"""Cells, and hosts as they are described and as they are known."""

from typing import Any

from moorage.model.basis import Name, Uuid, Value


class Cell(Value, frozen=True, kw_only=True):
    """A shard of the cloud. A URL of null means: the same as the reader's own main one."""

    uuid: Uuid
    name: Name
    transport_url: str | None = None
    database_connection: str | None = None


class HostReport(Value, frozen=True, kw_only=True):
    """A host as its agent describes it."""

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    agent: Name
    availability_zone: Name = "nova"
    attributes: dict[Name, Any] = {}


class HostState(Value, frozen=True, kw_only=True):
    """A host as the registry has it."""

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    cell_uuid: Uuid
    agent: Name
    availability_zone: Name
    up: bool
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    attributes: dict[Name, Any] = {}
    #: Seconds since the last heartbeat, by the database's clock.
    heartbeat_age: float
