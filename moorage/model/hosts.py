"""Cells, and hosts as they are described and as they are known."""

from typing import Annotated, Any

from msgspec import Meta

from moorage.model.basis import Count, Name, Text, Uuid, Value

#: A property of an image, as ``name=value``.
ImageProperty = Annotated[str, Meta(min_length=1, max_length=512)]


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

    def misnamed(self) -> str | None:
        """Return the first field whose name ends with a blank, which databases do not tell from the one without."""
        fields = ("service_host", "nodename", "agent", "availability_zone")
        return next((field for field in fields if getattr(self, field)[-1].isspace()), None)


class HostLoad(Value, frozen=True, kw_only=True):
    """What goes on on a host, as its cell has it on record."""

    #: How many servers are being started, moved or rebuilt there.
    io_ops: Count = 0
    #: How many builds have failed there lately: each counts less as time goes by, and as others succeed.
    failed_builds: Annotated[float, Meta(ge=0.0)] = 0.0
    #: How many servers run from an image with a property; only of those properties that the cell counts.
    image_properties: Annotated[dict[ImageProperty, Count], Meta(max_length=256)] = {}


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
    #: How many servers are placed on it; what else goes on there is as in :class:`HostLoad`.
    instances: Count = 0
    io_ops: Count = 0
    failed_builds: float = 0.0


#: What operators note of a host aggregate, for filters and weighers to read; both are text.
HostMetadata = Annotated[dict[Name, Text], Meta(max_length=256)]
#: The key of metadata whose value is the availability zone of the aggregate's hosts.
ZONE_KEY = "availability_zone"


class AggregateHost(Value, frozen=True, kw_only=True):
    """A host as a member of a host aggregate: every node that it has or will have belongs to it."""

    service_host: Name
    cell_uuid: Uuid


class HostAggregate(Value, frozen=True, kw_only=True):
    """A named set of hosts with metadata; its uuid is that of an aggregate of providers, which their nodes are in."""

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
