"""Hold and compare the content of a Placement service, by names and uuids, independently of its database."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from moorage.model import Inventory


class ImportedProvider(NamedTuple):
    """Describe a provider; ``parent`` and ``root`` are uuids."""

    name: str
    generation: int
    parent: str | None
    root: str


class ImportedConsumer(NamedTuple):
    """Describe a consumer; a type of null is Placement's ``unknown``."""

    type: str | None
    project_id: str
    user_id: str
    generation: int


class Times(NamedTuple):
    """Hold when something was created and last updated, in seconds since 1970."""

    created_at: float
    updated_at: float


@dataclass(frozen=True)
class Content:
    """Hold all data of a Placement service; sets are mappings with null as values."""

    #: By name: the custom ones, and all others that providers have.
    resource_classes: Mapping[str, None]
    traits: Mapping[str, None]
    #: By uuid.
    providers: Mapping[str, ImportedProvider]
    #: By provider and resource class.
    inventories: Mapping[tuple[str, str], Inventory]
    #: Pairs of a provider and a trait, and of a provider and an aggregate's uuid.
    provider_traits: Mapping[tuple[str, str], None]
    provider_aggregates: Mapping[tuple[str, str], None]
    #: By uuid: the consumers with allocations.
    consumers: Mapping[str, ImportedConsumer]
    #: The amount by consumer, provider and resource class.
    allocations: Mapping[tuple[str, str, str], int]
    #: The times of providers and consumers by uuid, which are not compared.
    times: Mapping[str, Times] = field(default_factory=dict, compare=False)


#: The parts of a content in the order in which they are written and shown.
PARTS = tuple(one.name for one in fields(Content) if one.compare)
#: Parts that may be larger in the store than in the source: nothing depends on a name that no provider has.
NAMES = ("resource_classes", "traits")


def differences(source: Content, store: Content) -> list[str]:
    """Compare a store with the source; describe each part that differs, with one example for the operator."""
    found = []
    for part in PARTS:
        wanted, present = getattr(source, part), getattr(store, part)
        unlike: dict[str, set[Any]] = {
            "missing": wanted.keys() - present.keys(),
            "different": {key for key in wanted.keys() & present.keys() if wanted[key] != present[key]},
            "not in the source": set() if part in NAMES else present.keys() - wanted.keys(),
        }
        if any(unlike.values()):
            numbers = ", ".join(f"{len(keys)} {what}" for what, keys in unlike.items() if keys)
            example = min(next(filter(None, unlike.values())))
            shown = example if isinstance(example, str) else " ".join(example)
            found.append(f"{part.replace('_', ' ')}: {numbers}, as {shown}")
    return found
