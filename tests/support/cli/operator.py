"""An operator of resource providers, who types commands and reads the output: over a bus, or directly on a database."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from moorage import ids
from moorage.cli.shell import main
from moorage.config import options
from placement_store.schema import MAIN
from placement_store.service import PlacementService
from support.databases import migrated


class Operator:
    """Types commands; ``words`` are appended to each of them."""

    def __init__(self, config_file: Path, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
        self.config_file = config_file
        self.words = words
        self._capsys = capsys

    def types(self, command: str, *more: str) -> Any:
        """Type a command that prints data, and return the data."""
        status, shown = self.runs(command, *more)
        assert status == 0
        return shown

    def runs(self, command: str, *more: str) -> tuple[int, Any]:
        """Type a command that prints data; return its exit status and the data, if any."""
        status = self._type(command, *more, "-f", "json")
        self.said = self._capsys.readouterr()
        return status, json.loads(self.said.out) if self.said.out else None

    def does(self, command: str, *more: str) -> None:
        """Type a command that prints nothing."""
        assert self._type(command, *more) == 0, self._capsys.readouterr().err

    def reads(self, command: str, *more: str) -> str:
        """Type a command, and return the table that it prints."""
        assert self._type(command, *more) == 0
        return self._capsys.readouterr().out

    def is_refused(self, command: str, *more: str) -> str:
        """Type a command that is refused, and return the sentence with the reason, without the code after it."""
        assert self._type(command, *more) != 0
        said = self._capsys.readouterr()
        assert said.out == ""
        lines = [line for line in said.err.splitlines() if line and not line.startswith(("usage:", " "))]
        # After a wrong argument, the output refers to the help of the command.
        return re.sub(r" \(moorage\.[a-z_.]+\)$", "", lines[-1].partition("; see `moorage ")[0])

    def _type(self, command: str, *more: str) -> int:
        try:
            return main(["--config-file", str(self.config_file), *command.split(), *more, *self.words])
        except SystemExit as usage:
            return int(usage.code or 0)


@pytest.fixture(params=["bus", "directly"])
def operator(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    """An operator of an empty store: over a bus with a placement role, or directly on the database."""
    if request.param == "directly on mariadb":
        url = request.getfixturevalue("migrated_mariadb").url(MAIN)
    else:
        url = migrated.sqlite(tmp_path / "main.sqlite", MAIN)
    config_file = tmp_path / "moorage.conf"
    if request.param.startswith("directly"):
        # There is no broker and no service.
        config_file.write_text("[DEFAULT]\ntransport_url = rabbit://nobody@127.0.0.1:1/\n")
        yield Operator(config_file, ["--database-url", url], capsys)
        return
    settings = {"transport_url": f"inproc://{ids.fresh()}/", "connection": url}
    config_file.write_text(
        "[DEFAULT]\ntransport_url = {transport_url}\n[database]\nconnection = {connection}\n".format(**settings)
    )
    service = PlacementService(options.new(files=[config_file]), "p1")
    service.start()
    yield Operator(config_file, [], capsys)
    service.stop()
