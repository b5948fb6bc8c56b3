"""Test the contents of the wheel, and that no other distribution installs files under the same names."""

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SERVICES = {"placement_store", "scheduler", "conductor", "compute", "dashboard"}
NAMES = {"moorage", "filters", "weighers", "harness"} | SERVICES
#: What is shipped beside modules.
DATA = (".py", ".typed", ".html", ".js", ".css", ".svg", ".LICENSE")


def entry_points() -> list[importlib.metadata.EntryPoint]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["project"]["entry-points"]
    return [
        importlib.metadata.EntryPoint(name, value, group)
        for group, points in groups.items()
        for name, value in points.items()
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the check-out, whose own build folder may contain files that no longer exist."""
    copy = tmp_path_factory.mktemp("wheel") / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    return copy


def build(source: Path, kind: str) -> tuple[list[str], str]:
    """Build a distribution as pip does, by `build_KIND` of setuptools; return its files and its output."""
    target = source / "dist" / kind
    target.mkdir(parents=True)
    hook = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    done = subprocess.run(
        [sys.executable, "-c", hook],
        cwd=source,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    [built] = target.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist(), done.stdout


@pytest.fixture(scope="module")
def built_wheel(source: Path) -> tuple[list[str], str]:
    """Build a wheel; return its files and its output."""
    return build(source, "wheel")


@pytest.fixture(scope="module")
def wheel(built_wheel: tuple[list[str], str]) -> list[str]:
    """Return the files of a wheel."""
    return built_wheel[0]


def test_the_installation_of_a_check_out_and_of_a_wheel_gives_no_warning(
    source: Path, built_wheel: tuple[list[str], str]
) -> None:
    _, written = build(source, "editable")

    assert "Warning" not in written
    assert "Warning" not in built_wheel[1]


def test_a_wheel_holds_our_packages_and_no_tests(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}

    assert {top for top in tops if not top.endswith(".dist-info")} == NAMES


def test_a_wheel_holds_every_module_and_every_file_of_the_dashboard(wheel: list[str]) -> None:
    files = (path for name in NAMES for path in (ROOT / name).rglob("*"))
    modules = {str(path.relative_to(ROOT)) for path in files if path.suffix in DATA}

    assert modules - set(wheel) == set()


@pytest.mark.parametrize("point", entry_points(), ids=lambda point: f"{point.group}:{point.name}")
def test_every_entry_point_can_be_loaded(point: importlib.metadata.EntryPoint) -> None:
    assert point.load() is not None


def test_no_other_distribution_installs_files_into_our_packages() -> None:
    owners = importlib.metadata.packages_distributions()

    assert {name: set(owners.get(name, ())) - {"moorage"} for name in sorted(NAMES)} == {name: set() for name in NAMES}
