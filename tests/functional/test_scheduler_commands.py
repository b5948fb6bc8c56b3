"""`moorage host list`, `moorage host set` and `moorage host delete`, against a scheduler on an in-process bus."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scheduler_rig import Rig

from moorage import ids, options
from moorage.shell import main
from scheduler.service import SchedulerService


class Operator:
    """Types commands and reads what they print."""

    def __init__(self, config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config_file = config_file
        self._capsys = capsys

    def types(self, *words: str) -> Any:
        status = main(["--config-file", str(self._config_file), *words, "-f", "json"])
        printed = self._capsys.readouterr()
        assert status == 0, printed.err
        return json.loads(printed.out)

    def is_refused(self, *words: str) -> str:
        assert main(["--config-file", str(self._config_file), *words]) != 0
        return self._capsys.readouterr().err


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Operator]:
    rig = Rig(f"sqlite:///{tmp_path}/main.sqlite")
    rig.add_hosts([1, 2])
    rig.add_hosts([3], cell=1, availability_zone="b")
    config_file = tmp_path / "moorage.conf"
    config_file.write_text(f"[DEFAULT]\ntransport_url = inproc://{ids.fresh()}/\n[database]\nconnection = {rig.url}\n")
    service = SchedulerService(options.new(files=[config_file]), "one")
    service.start()
    yield Operator(config_file, capsys)
    service.stop()
    rig.close()


def test_hosts_are_listed_with_the_names_of_their_cells(operator: Operator) -> None:
    listed = operator.types("host", "list")
    assert [(host["host"], host["cell"], host["zone"], host["up"]) for host in listed] == [
        ("host1", "cell0", "nova", True),
        ("host2", "cell0", "nova", True),
        ("host3", "cell1", "b", True),
    ]
    assert [host["host"] for host in operator.types("host", "list", "--cell", "cell1")] == ["host3"]


def test_a_host_is_disabled_enabled_and_forced_down(operator: Operator) -> None:
    disabled = operator.types("host", "set", "host1", "--disable", "--reason", "new disks")
    assert (disabled["host"], disabled["disabled"], disabled["reason"]) == ("host1", True, "new disks")
    down = operator.types("host", "set", "host1", "--cell", "cell0", "--enable", "--forced-down")
    assert (down["disabled"], down["reason"], down["forced_down"]) == (False, None, True)
    assert operator.types("host", "set", "host1", "--not-forced-down")["forced_down"] is False


def test_a_host_is_deleted_once_it_is_down_and_nobody_holds_anything_of_it(operator: Operator) -> None:
    assert "host1 is up" in operator.is_refused("host", "delete", "host1")
    operator.types("host", "set", "host1", "--forced-down")
    assert operator.types("host", "delete", "host1", "--dry-run") == {"host": "host1", "deleted": False}
    assert operator.types("host", "delete", "host1", "--cell", "cell0") == {"host": "host1", "deleted": True}
    assert [host["host"] for host in operator.types("host", "list")] == ["host2", "host3"]
    assert "There is no host host1" in operator.is_refused("host", "delete", "host1")


def test_what_does_not_exist_is_said_to_be_so(operator: Operator) -> None:
    assert "There is no host nobody" in operator.is_refused("host", "set", "nobody", "--disable")
    assert "There is no cell nowhere" in operator.is_refused("host", "list", "--cell", "nowhere")
