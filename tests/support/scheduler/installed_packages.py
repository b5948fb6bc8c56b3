"""Packages with plug-ins, installed for one test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from stevedore import ExtensionManager

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a package of one module with entry points; it may be called several times."""
    # stevedore caches entry points, and would not find new ones.
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})

    def installed(name: str, module: str, **groups: dict[str, str]) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = []
        for group, points in groups.items():
            lines += [f"[moorage.{group}]", *(f"{point} = {value}" for point, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(str(folder))

    return installed
