"""Cells, hosts and host aggregates."""

from typing import Annotated, Any

from msgspec import Meta

from moorage.model.basis import Count, Name, Text, Uuid, Value, fault_of_name

#: A property of an image, as ``name=value``.
ImageProperty = Annotated[str, Meta(min_length=1, max_length=512)]


class Cell(Value, frozen=True, kw_only=True):
    """A cell: a shard of the cloud. A null URL stands for the reader's own main one."""

    uuid: Uuid
    name: Name
    transport_url: str | None = None
    database_connection: str | None = None


class HostReport(Value, frozen=True, kw_only=True):
    """The description of a host by its agent."""

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    agent: Name
    availability_zone: Name = "nova"
    attributes: dict[Name, Any] = {}

    def misnamed(self) -> str | None:
        """Return the first field whose name is not valid (:func:`~moorage.model.basis.fault_of_name`)."""
        fields = ("service_host", "nodename", "agent", "availability_zone")
        return next((field for field in fields if fault_of_name(getattr(self, field))), None)


class HostLoad(Value, frozen=True, kw_only=True):
    """The load of a host, by its cell's records."""

    #: The number of servers that are being started, moved or rebuilt there.
    io_ops: Count = 0
    #: The number of recent failed builds there, which decays with time and with successful builds.
    failed_builds: Annotated[float, Meta(ge=0.0)] = 0.0
    #: The number of servers by property of their image, for the properties that the cell counts.
    image_properties: Annotated[dict[ImageProperty, Count], Meta(max_length=256)] = {}


class HostState(Value, frozen=True, kw_only=True):
    """A host in the registry."""

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
    #: The number of servers placed on it; the next two are as in :class:`HostLoad`.
    instances: Count = 0
    io_ops: Count = 0
    failed_builds: float = 0.0


#: The metadata of a host aggregate, set by operators and read by filters and weighers; keys and values are text.
HostMetadata = Annotated[dict[Name, Text], Meta(max_length=256)]
#: The key of metadata whose value is the availability zone of the aggregate's hosts.
ZONE_KEY = "availability_zone"


class AggregateHost(Value, frozen=True, kw_only=True):
    """A host as a member of a host aggregate, with all its present and future nodes."""

    service_host: Name
    cell_uuid: Uuid


class HostAggregate(Value, frozen=True, kw_only=True):
    """A named set of hosts with metadata; its uuid is that of the provider aggregate of their nodes."""

    uuid: Uuid
    name: Name
    metadata: HostMetadata = {}
    #: By cell and name.
    hosts: tuple[AggregateHost, ...] = ()


class UnmirroredHost(Value, frozen=True, kw_only=True):
    """A node of an aggregate's host whose provider is not in the aggregate."""

    aggregate: Name
    aggregate_uuid: Uuid
    service_host: Name
    cell_uuid: Uuid
    provider_uuid: Uuid
