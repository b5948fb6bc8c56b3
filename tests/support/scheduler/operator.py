"""An operator of a scheduler on an in-process bus, who types commands and reads the output."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage import ids
from moorage.bus.bus import Bus
from moorage.cli.shell import main
from moorage.config import options
from moorage.messages import ReportService
from moorage.model.inspection import ServiceReport
from scheduler.service import SchedulerService
from support.scheduler.rig import Rig


class Operator:
    """Types commands and reads the output."""

    def __init__(self, config_file: Path, capsys: pytest.CaptureFixture[str], rig: Rig) -> None:
        self.config_file = config_file
        self.rig = rig
        self._capsys = capsys

    def types(self, *words: str) -> Any:
        """Type a command and return the data that it prints."""
        status, shown, said = self.runs(*words)
        assert status == 0, said
        return shown

    def runs(self, *words: str) -> tuple[int, Any, str]:
        """Type a command; return its exit status, the data that it prints, and its other output."""
        status = main(["--config-file", str(self.config_file), *words, "-f", "json"])
        printed = self._capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else None, printed.err

    def reads(self, *words: str) -> str:
        """Type a command and return the table that it prints."""
        assert main(["--config-file", str(self.config_file), *words]) == 0
        return self._capsys.readouterr().out

    def is_refused(self, *words: str) -> str:
        """Type a command that is refused, and return the reason."""
        try:
            status = main(["--config-file", str(self.config_file), *words])
        except SystemExit as usage:
            status = int(usage.code or 0)
        assert status != 0
        return self._capsys.readouterr().err


def report_scheduler(bus: Bus, name: str) -> None:
    """Report a scheduler of this name, so that commands list it and wait for it."""
    service = ServiceReport(name=name, kind="scheduler", machine="m", version="1")
    bus.client("placement").call(ReportService(request_id=ids.fresh(), service=service))


@pytest.fixture
def operator_of_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    """An operator of three hosts in two cells."""
    rig = Rig(f"sqlite:///{tmp_path}/main.sqlite")
    rig.add_hosts([1, 2])
    rig.add_hosts([3], cell=1, availability_zone="b")
    config_file = tmp_path / "moorage.conf"
    config_file.write_text(f"[DEFAULT]\ntransport_url = inproc://{ids.fresh()}/\n[database]\nconnection = {rig.url}\n")
    service = SchedulerService(options.new(files=[config_file]), "one")
    service.start()
    yield Operator(config_file, capsys, rig)
    service.stop()
    rig.close()
