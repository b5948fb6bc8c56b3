"""Test what commands print on standard error when they fail."""

import argparse
from pathlib import Path
from typing import NoReturn

import pytest
from support.processes.command import moorage

from moorage.cli.audit.command import AuditShow
from moorage.cli.shell import Shell, main
from scheduler.commands.explain import Explain


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


def test_the_error_of_a_database_file_that_cannot_be_opened_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[database]\nconnection = sqlite:///{tmp_path}/missing/store.sqlite\n")
    failed = moorage("--config-file", str(file), "db", "upgrade")
    assert failed.returncode == 1
    assert f"cannot be reached: {tmp_path}/missing/store.sqlite: unable to open database file." in failed.stderr


def test_the_error_of_an_unknown_transport_is_printed_once(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[DEFAULT]\ntransport_url = foo://x\n")
    failed = moorage("--config-file", str(file), "host", "list")
    assert failed.returncode == 1
    [line] = failed.stderr.splitlines()
    assert line.startswith("The configuration is wrong: transport_url foo://x: ")


@pytest.mark.parametrize(
    ("words", "status"),
    [("host list", 1), ("scheduler --name one", 1), ("explain --vcpus 1 --memory-mb 1", 3), ("audit", 2)],
)
def test_the_last_error_of_a_command_or_service_ends_with_its_code(tmp_path: Path, words: str, status: int) -> None:
    empty = tmp_path / "moorage.conf"
    empty.touch()
    failed = moorage("--config-file", str(empty), *words.split())
    assert failed.returncode == status
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


class ExplainIntoAClosedPipe(Explain):
    def take_action(self, parsed_args: argparse.Namespace) -> NoReturn:
        raise BrokenPipeError(32, "Broken pipe")


class AuditIntoAClosedPipe(AuditShow):
    def take_action(self, parsed_args: argparse.Namespace) -> NoReturn:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize(
    ("command", "words"), [(ExplainIntoAClosedPipe, ("--vcpus", "1", "--memory-mb", "1")), (AuditIntoAClosedPipe, ())]
)
def test_a_closed_pipe_is_no_failure_of_the_cloud(
    capsys: pytest.CaptureFixture[str], command: type[Explain | AuditShow], words: tuple[str, ...]
) -> None:
    shell = Shell()
    shell.options = argparse.Namespace(debug=False)
    ended = command(shell, None, "command")
    with pytest.raises(BrokenPipeError):
        ended.run(ended.get_parser("moorage command").parse_args(words))
    assert capsys.readouterr().err == ""
