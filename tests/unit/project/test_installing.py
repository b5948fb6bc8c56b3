"""Test the files for the installation of Moorage: constraints, and the containers of a whole cloud."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from moorage.cli.shell import Shell
from moorage.config import calls

ROOT = Path(__file__).parents[3]
CONSTRAINTS = {
    requirement.name: requirement.specifier
    for line in (ROOT / "etc/constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for requirement in [Requirement(line)]
}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "etc/container/compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "moorage"}


def test_the_constraints_pin_every_dependency_to_an_allowed_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        one
        for name in ("servers", "bench", "simulation", "keystone", "tracing")
        for one in project["optional-dependencies"][name]
    ]
    for text in [*project["dependencies"], *extras]:
        needed = Requirement(text)
        [exact] = CONSTRAINTS[canonicalize_name(needed.name)]
        assert exact.operator == "=="
        assert needed.specifier.contains(exact.version), text


def test_the_installed_versions_are_those_of_the_constraints() -> None:
    written = subprocess.run(
        [sys.executable, ".ci/constraints.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert written.stdout == (ROOT / "etc/constraints.txt").read_text(), "run `python .ci/constraints.py write`"
    assert all(specifier.contains(metadata.version(name)) for name, specifier in CONSTRAINTS.items())


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_command_of_each_container_exists_with_its_options(name: str) -> None:
    shell = Shell()
    kind, command, rest = shell.command_manager.find_command(OURS[name]["command"])
    kind(shell, None, command).get_parser(command).parse_args(rest)


def test_containers_wait_for_containers_that_exist_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"][0] == "CMD"
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[other]["restart"] == "no"
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_the_containers_environment_is_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES["scheduler"]["environment"]
    for name, value in environment.items():
        monkeypatch.setenv(name, re.sub(r"\$\{[^}]*\}", "pass", value))
    conf = calls.read([])
    assert conf.transport_url == "rabbit://moorage:pass@broker:5672/moorage"
    assert conf.database.connection == "mysql+pymysql://moorage:pass@database:3306/moorage?charset=utf8mb4"
    # The images create the user and the virtual host that the services use.
    assert (
        SERVICES["database"]["environment"]["MARIADB_USER"]
        == SERVICES["broker"]["environment"]["RABBITMQ_DEFAULT_USER"]
    )
    assert SERVICES["broker"]["environment"]["RABBITMQ_DEFAULT_VHOST"] == "moorage"


def test_the_image_is_built_with_the_constraints() -> None:
    assert "-c /src/etc/constraints.txt" in (ROOT / "etc/container/Containerfile").read_text()
