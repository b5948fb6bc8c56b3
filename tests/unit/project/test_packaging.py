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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of a wheel, built from a copy: a check-out's own build folder may hold files that are long gone."""
    copy = tmp_path_factory.mktemp("wheel") / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    [built] = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


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


def test_no_other_distribution_has_put_files_into_our_names() -> None:
    owners = importlib.metadata.packages_distributions()

    assert {name: set(owners.get(name, ())) - {"moorage"} for name in sorted(NAMES)} == {name: set() for name in NAMES}
