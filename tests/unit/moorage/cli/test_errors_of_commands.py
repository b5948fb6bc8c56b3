"""Test what commands print on standard error when they fail."""

from pathlib import Path

import pytest
from support.processes.command import moorage

from moorage.cli.shell import main


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A configuration whose database and broker are absent: no server listens on these ports."""
    file = tmp_path / "moorage.conf"
    file.write_text(
        "[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1\n"
        "[database]\nconnection = mysql+pymysql://service:secret@127.0.0.1:1/moorage\n"
    )
    return file


def test_the_error_of_an_absent_database_is_printed_once(config_file: Path) -> None:
    failed = moorage("--config-file", str(config_file), "db", "upgrade")
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("The database of main cannot be reached: Can't connect to MySQL server")


def test_the_error_of_an_unknown_transport_is_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[DEFAULT]\ntransport_url = foo://x\n")
    failed = moorage("--config-file", str(file), "host", "list")
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("The configuration is wrong: transport_url foo://x: ")


@pytest.mark.parametrize("words", ["host list", "scheduler --name one"])
def test_the_last_error_of_a_command_or_service_ends_with_its_code(tmp_path: Path, words: str) -> None:
    empty = tmp_path / "moorage.conf"
    empty.touch()
    failed = moorage("--config-file", str(empty), *words.split())
    assert failed.returncode == 1
    # A service that has set up its log writes the sentence there.
    assert (failed.stdout + failed.stderr).endswith(". (moorage.configuration)\n")


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("migration show nope", "uuid"),
        ("operation show nope", "uuid"),
        ("instance build --vcpus 1 --memory-mb 1 --name a --server-group nope", "--server-group"),
    ],
)
def test_an_argument_that_is_no_uuid_is_refused_with_its_name(
    capsys: pytest.CaptureFixture[str], words: str, argument: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert f"argument {argument}: 'nope' is not a uuid" in capsys.readouterr().err
