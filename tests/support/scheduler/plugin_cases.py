"""Cases for filters and weighers: hosts as a case describes them, and what a plug-in makes of them in both forms."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorage import errors
from moorage.config import options
from moorage.model import Flavor, Image, RequestSpec
from moorage.plugin import Filter, Weigher
from scheduler.plugins.loading import load_filters, load_weighers
from scheduler.view.snapshot import Snapshot
from support.scheduler.builders import host_cache, host_row, spec


def hosts(*described: Mapping[str, Any]) -> Snapshot:
    """Hosts 0, 1, ... as they are described; `instances` says how many servers are placed on one."""
    rows = [
        host_row(number, **{name: value for name, value in one.items() if name != "instances"})
        for number, one in enumerate(described)
    ]
    shown = host_cache(rows)
    shown.update(instances={number: one.get("instances", 0) for number, one in enumerate(described)})
    return shown.snapshot()


def flavored(name: str = "m1.small", **extra_specs: str) -> RequestSpec:
    """A request for a flavor of such extra specs; a colon in a key is written as two underscores."""
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return spec(flavor=Flavor(name=name, vcpus=1, memory_mb=1, extra_specs=specs))


def imaged(image_id: str | None = None, **properties: str) -> RequestSpec:
    return spec(image=Image(id=image_id, properties=properties))


def hinted(**hints: str) -> RequestSpec:
    return spec(scheduler_hints=hints)


def configured(folder: Path, group: str, settings: Mapping[str, str]) -> Any:
    """A configuration with these settings of plug-ins."""
    file = folder / "moorage.conf"
    file.write_text("\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in settings.items())]))
    return options.new(files=[file])


def a_filter(name: str, folder: Path, **settings: str) -> Filter:
    return load_filters(configured(folder, "filters", settings), [name])[0].plugin


def a_weigher(name: str, folder: Path, **settings: str) -> Weigher:
    return load_weighers(configured(folder, "weighers", settings), [name])[0].plugin


def passing(plugin: Filter, view: Snapshot, request: RequestSpec) -> list[int]:
    """The hosts that pass, by number: asked all at once and each for itself."""
    plugin.check(request)
    mask = plugin.mask(view, request).tolist()
    assert mask == [plugin.passes(view.host(row), request) for row in range(len(view))]
    if not plugin.concerns(request):
        assert all(mask)
    return [row for row, passes in enumerate(mask) if passes]


def weights(plugin: Weigher, view: Snapshot, request: RequestSpec | None = None) -> list[float]:
    """The weights of all hosts: asked all at once and each for itself."""
    request = request or spec()
    scores: list[float] = plugin.scores(view, request).tolist()
    assert scores == pytest.approx([plugin.weigh(view.host(row), request) for row in range(len(view))], nan_ok=True)
    return scores


def refusal(plugin: Filter, request: RequestSpec) -> tuple[str, str]:
    """Where and why a filter refuses a request outright."""
    with pytest.raises(errors.InvalidRequest) as caught:
        plugin.check(request)
    return caught.value.path, caught.value.reason


def attributes(*values: Mapping[str, Any]) -> Snapshot:
    """Hosts of which drivers say no more than this."""
    return hosts(*({"attributes": dict(value)} for value in values))


def aggregates(*metadata: Mapping[str, Sequence[str]]) -> Snapshot:
    """Hosts whose aggregates give keys no more than these values."""
    return hosts(*({"metadata": {key: frozenset(values) for key, values in one.items()}} for one in metadata))
