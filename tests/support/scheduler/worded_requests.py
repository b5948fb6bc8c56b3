"""Requests in the terms of flavors and images, and clouds as request filters see them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from moorage.config import options
from moorage.ids import derived
from moorage.model import Flavor, Image, RequestSpec, ResourceGroup
from moorage.plugin import Aggregate, Cloud, RequestFilter
from scheduler.plugins.loading import Named, load_request_filters
from support.scheduler.builders import spec

AGGREGATES = [derived("tests", "host-aggregate", number) for number in range(3)]


class StillCloud(Cloud):
    """A cloud that consists only of these values."""

    def __init__(self, aggregates: Sequence[Aggregate] = (), traits: Collection[str] = ()) -> None:
        self._aggregates = aggregates
        self._traits = traits

    def aggregates(self) -> Sequence[Aggregate]:
        return self._aggregates

    def has_trait(self, trait: str) -> bool:
        return trait in self._traits


NOTHING_KNOWN = StillCloud()


def aggregates(*metadata: Mapping[str, str]) -> StillCloud:
    """Return a cloud with host aggregates that have this metadata."""
    return StillCloud([Aggregate(uuid, f"a{uuid}", each) for uuid, each in zip(AGGREGATES, metadata, strict=False)])


def asked(
    extra_specs: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    vcpus: int = 4,
    memory_mb: int = 4096,
    root_gb: int = 20,
    **changes: Any,
) -> RequestSpec:
    """Return a request for a server of a flavor with these extra specs, from an image with these properties."""
    flavor = Flavor(vcpus=vcpus, memory_mb=memory_mb, root_gb=root_gb, extra_specs=dict(extra_specs or {}))
    return spec(flavor=flavor, image=Image(properties=dict(properties or {})), **changes)


def loaded(names: Sequence[str], **settings: Any) -> list[Named[RequestFilter]]:
    """Return the request filters of these names, with these values of their options."""
    conf = options.new()
    filters = load_request_filters(conf, names)
    if settings:
        # The options of the filters are registered only now.
        for name, value in settings.items():
            conf.set_override(name, value, group="request_filters")
        filters = load_request_filters(conf, names)
    return filters


def narrowed(request: RequestSpec, *names: str, cloud: Cloud = NOTHING_KNOWN, **settings: Any) -> RequestSpec:
    """Return a request after these filters were applied, one after another."""
    for _, plugin in loaded(names, **settings):
        request = plugin.narrow(request, cloud)
    return request


def group(resources: Mapping[str, int] | None = None, **rules: Any) -> ResourceGroup:
    return ResourceGroup(resources=dict(resources or {}), **rules)
