"""Test a correct and a broken package of plug-ins, installed into a virtual environment."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
RACKS = ROOT / "docs" / "examples" / "racks"
PACKAGES = ROOT / "tests" / "plugin_packages"
SECONDS = 240


class Environment:
    """A new virtual environment that also has the packages of this one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.python = folder / "env" / "bin" / "python"
        [packages] = (folder / "env" / "lib").glob("python*/site-packages")
        # What `--system-site-packages` does for a Python that is in no environment itself.
        ours = sysconfig.get_path("purelib")
        (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")

    def install(self, package: Path) -> Path:
        """Install a package from a copy, with no network, and return the copy."""
        copy = self._folder / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        self._run([*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", str(copy)])
        return copy

    def run(self, *arguments: str, folder: Path | None = None) -> str:
        """Run its Python and return the output."""
        return self._run([str(self.python), *arguments], folder)

    def _run(self, command: list[str], folder: Path | None = None) -> str:
        done = subprocess.run(
            command, cwd=folder or self._folder, env=self._environ, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("plugins"))


@pytest.fixture(scope="module")
def racks(environment: Environment) -> Path:
    return environment.install(RACKS)


@pytest.fixture(scope="module")
def answers(environment: Environment, racks: Path) -> dict[str, Any]:
    """Return the answers of a cloud with the plug-ins of both packages."""
    environment.install(PACKAGES / "leaky")
    found: dict[str, Any] = json.loads(environment.run(str(PACKAGES / "cloud_with_plugins.py")))
    return found


@pytest.mark.timeout(2 * SECONDS)
def test_the_tests_of_the_sample_package_pass_where_it_is_installed(environment: Environment, racks: Path) -> None:
    assert "passed" in environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", folder=racks)


@pytest.mark.timeout(2 * SECONDS)
def test_a_cloud_uses_the_plugins_of_an_installed_package(answers: dict[str, Any]) -> None:
    assert answers["plain"]["host"] == answers["powerful"]
    assert "rack_power" in answers["plain"]["weighers"]
    assert answers["rack"]["error"] == "NoValidHost"
    assert "in another rack" in answers["rack"]["text"]
    assert (answers["no rack"]["error"], answers["tin"]["error"]) == ("InvalidRequest", "InvalidRequest")
    assert "'tin' is none of gold, silver" in answers["tin"]["text"]


@pytest.mark.timeout(2 * SECONDS)
def test_a_broken_plugin_is_named_and_fails_only_the_requests_that_use_it(answers: dict[str, Any]) -> None:
    leak, drip = answers["leak"], answers["drip"]
    assert (leak["error"], leak["plugin"]) == ("BrokenPlugin", "leaky_filter")
    assert (drip["error"], drip["plugin"]) == ("BadPluginValue", "leaky_weigher")
    assert answers["afterwards"]["host"] == answers["powerful"]


@pytest.mark.timeout(2 * SECONDS)
def test_a_broken_plugin_is_skipped_if_so_configured_and_each_answer_names_it(
    answers: dict[str, Any],
) -> None:
    skip, powerful = answers["skip"], answers["powerful"]
    assert (skip["leak"]["host"], skip["drip"]["host"]) == (powerful, powerful)
    assert list(skip["leak"]["skipped"]) == ["filter leaky_filter"]
    assert "ZeroDivisionError" in skip["leak"]["skipped"]["filter leaky_filter"]
    assert list(skip["drip"]["skipped"]) == ["weigher leaky_weigher"]
    assert skip["both and another rack"]["error"] == "NoValidHost"
    assert "decided without the broken filter leaky_filter" in skip["both and another rack"]["text"]
    assert skip["plain"]["skipped"] == {}
    policy = skip["policy"]
    assert policy["broken_plugin"] == "skip"
    assert set(policy["broken"]) == {"filter leaky_filter", "weigher leaky_weigher"}
    assert "moorage-racks 1.0.0" in next(each["source"] for each in policy["filters"] if each["name"] == "rack")
