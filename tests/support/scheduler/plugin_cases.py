"""Cases for filters and weighers: described hosts, and the results of a plug-in in both of its forms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorage import errors
from moorage.model import Flavor, Image, RequestSpec
from moorage.plugin import Filter, Weigher
from scheduler.plugins.loading import load_filters, load_weighers
from scheduler.view.snapshot import Snapshot
from support.moorage.configuration import from_text
from support.scheduler.builders import host_cache, host_row, spec


def hosts(*described: Mapping[str, Any]) -> Snapshot:
    """Hosts 0, 1, ... with these attributes; `instances` is the number of servers on a host."""
    rows = [
        host_row(number, **{name: value for name, value in one.items() if name != "instances"})
        for number, one in enumerate(described)
    ]
    shown = host_cache(rows)
    shown.update(instances={number: one.get("instances", 0) for number, one in enumerate(described)})
    return shown.snapshot()


def flavored(name: str = "m1.small", **extra_specs: str) -> RequestSpec:
    """A request for a flavor with these extra specs; a colon in a key is written as two underscores."""
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return spec(flavor=Flavor(name=name, vcpus=1, memory_mb=1, extra_specs=specs))


def imaged(image_id: str | None = None, **properties: str) -> RequestSpec:
    return spec(image=Image(id=image_id, properties=properties))


def hinted(**hints: str) -> RequestSpec:
    return spec(scheduler_hints=hints)


def configured(folder: Path, group: str, settings: Mapping[str, str]) -> Any:
    """A configuration with these plug-in options."""
    return from_text(folder, "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in settings.items())]))


def a_filter(name: str, folder: Path, **settings: str) -> Filter:
    return load_filters(configured(folder, "filters", settings), [name])[0].plugin


def a_weigher(name: str, folder: Path, **settings: str) -> Weigher:
    return load_weighers(configured(folder, "weighers", settings), [name])[0].plugin


def passing(plugin: Filter, view: Snapshot, request: RequestSpec) -> list[int]:
    """Return the numbers of the hosts that pass; check that the array form and the single form agree."""
    plugin.check(request)
    mask = plugin.mask(view, request).tolist()
    assert mask == [plugin.passes(view.host(row), request) for row in range(len(view))]
    if not plugin.concerns(request):
        assert all(mask)
    return [row for row, passes in enumerate(mask) if passes]


def weights(plugin: Weigher, view: Snapshot, request: RequestSpec | None = None) -> list[float]:
    """Return the weights of all hosts; check that the array form and the single form agree."""
    request = request or spec()
    scores: list[float] = plugin.scores(view, request).tolist()
    assert scores == pytest.approx([plugin.weigh(view.host(row), request) for row in range(len(view))], nan_ok=True)
    return scores


def refusal(plugin: Filter, request: RequestSpec) -> tuple[str, str]:
    """Return the path and the reason of a filter's refusal of the request itself."""
    with pytest.raises(errors.InvalidRequest) as caught:
        plugin.check(request)
    return caught.value.path, caught.value.reason


def attributes(*values: Mapping[str, Any]) -> Snapshot:
    """Hosts with only these attributes from their drivers."""
    return hosts(*({"attributes": dict(value)} for value in values))


def aggregates(*metadata: Mapping[str, Sequence[str]]) -> Snapshot:
    """Hosts with only this metadata from their aggregates."""
    return hosts(*({"metadata": {key: frozenset(values) for key, values in one.items()}} for one in metadata))
