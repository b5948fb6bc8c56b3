"""Every error Moorage raises, in one tree grouped by who must act; the docstring is what the operator reads.

The first paragraph of a class's docstring is its message, with the error's own data filled in. Data is keyword-only
and JSON-safe, so that an error crosses the bus as itself. A ``code`` never changes once it has been released.
"""

from moorage.errors.away import (
    BusUnavailable,
    CellUnreachable,
    NoReply,
    Overloaded,
    StoreUnavailable,
    Unavailable,
)
from moorage.errors.basis import (
    MoorageError,
    every_error,
)
from moorage.errors.caller import (
    AlreadyExists,
    CallerError,
    CellNotFound,
    ConsumerDeleted,
    ConsumerNotFound,
    HostNotFound,
    InstanceNotFound,
    InvalidRequest,
    InvalidState,
    InventoryNotFound,
    MigrationNotFound,
    NameInUse,
    NotFound,
    ProviderNotFound,
    RequestIdReused,
    ResourceClassNotFound,
    ServerGroupNotFound,
    TraitNotFound,
)
from moorage.errors.fault import (
    BrokenPlugin,
    InternalError,
)
from moorage.errors.installation import (
    ConfigurationError,
    SchemaMismatch,
    UnknownPlugin,
)
from moorage.errors.later import (
    ClaimContention,
    RequestInProgress,
    TryAgain,
)
from moorage.errors.refused import (
    BuildFailed,
    CannotCarryOver,
    CapacityExceeded,
    GroupRuleRefused,
    GuestActionFailed,
    ImpossibleDeal,
    InvalidInventory,
    InventoryInUse,
    MaxRetriesExceeded,
    NoValidHost,
    PlacementRefused,
    ProviderHasChildren,
    ProviderInUse,
    SearchBoundReached,
)
from moorage.errors.stale import (
    ClaimReleased,
    ConsumerGenerationConflict,
    ProviderGenerationConflict,
    StaleView,
)

__all__ = [
    "AlreadyExists",
    "BrokenPlugin",
    "BuildFailed",
    "BusUnavailable",
    "CallerError",
    "CannotCarryOver",
    "CapacityExceeded",
    "CellNotFound",
    "CellUnreachable",
    "ClaimContention",
    "ClaimReleased",
    "ConfigurationError",
    "ConsumerDeleted",
    "ConsumerGenerationConflict",
    "ConsumerNotFound",
    "GroupRuleRefused",
    "GuestActionFailed",
    "HostNotFound",
    "ImpossibleDeal",
    "InstanceNotFound",
    "InternalError",
    "InvalidInventory",
    "InvalidRequest",
    "InvalidState",
    "InventoryInUse",
    "InventoryNotFound",
    "MaxRetriesExceeded",
    "MigrationNotFound",
    "MoorageError",
    "NameInUse",
    "NoReply",
    "NoValidHost",
    "NotFound",
    "Overloaded",
    "PlacementRefused",
    "ProviderGenerationConflict",
    "ProviderHasChildren",
    "ProviderInUse",
    "ProviderNotFound",
    "RequestIdReused",
    "RequestInProgress",
    "ResourceClassNotFound",
    "SchemaMismatch",
    "SearchBoundReached",
    "ServerGroupNotFound",
    "StaleView",
    "StoreUnavailable",
    "TraitNotFound",
    "TryAgain",
    "Unavailable",
    "UnknownPlugin",
    "every_error",
]
