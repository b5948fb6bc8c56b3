"""Every message of every topic, as a value.

A message class says its topic, its method, the version that brought it and, as its type argument, what it is answered
with. Senders and servers share the class, so there is one shape per message and no list of methods to keep in step.
"""

from moorage.messages.basis import MAX_INSTANCES, Done, InstanceUuids
from moorage.messages.cell import (
    AcceptInCell,
    BuildFailedInCell,
    BuildFinished,
    BuildInCell,
    DeleteInCell,
    InstanceBuild,
    ReportHostsInCell,
    ReportProviderTree,
    ShowInCell,
)
from moorage.messages.compute import BuildOnHost, DestroyOnHost
from moorage.messages.conductor import BuildInstances, DeleteInstance, ListInstances, ShowInstance
from moorage.messages.placement import (
    AcceptClaim,
    Claimed,
    ConsumerWritten,
    CreateResourceProvider,
    DeleteAllocations,
    DeleteResourceProvider,
    GetAllocations,
    GetResourceProvider,
    ListCells,
    ListResourceProviders,
    PostAllocations,
    PutAllocations,
    ReportProviders,
    SetInventories,
    SwapClaim,
)
from moorage.messages.scheduler import ListHosts, ReportHosts, SelectDestinations, SetHost

__all__ = [
    "MAX_INSTANCES",
    "AcceptClaim",
    "AcceptInCell",
    "BuildFailedInCell",
    "BuildFinished",
    "BuildInCell",
    "BuildInstances",
    "BuildOnHost",
    "Claimed",
    "ConsumerWritten",
    "CreateResourceProvider",
    "DeleteAllocations",
    "DeleteInCell",
    "DeleteInstance",
    "DeleteResourceProvider",
    "DestroyOnHost",
    "Done",
    "GetAllocations",
    "GetResourceProvider",
    "InstanceBuild",
    "InstanceUuids",
    "ListCells",
    "ListHosts",
    "ListInstances",
    "ListResourceProviders",
    "PostAllocations",
    "PutAllocations",
    "ReportHosts",
    "ReportHostsInCell",
    "ReportProviderTree",
    "ReportProviders",
    "SelectDestinations",
    "SetHost",
    "SetInventories",
    "ShowInCell",
    "ShowInstance",
    "SwapClaim",
]
