"""The folders of forked histories: those of a run that was killed are removed by the next one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.simulation import forks

_LEAVE_A_FOLDER = """
import os
from harness.simulation import forks
print(forks.new_folder(), flush=True)
os.kill(os.getpid(), 9)
"""


def left_by_a_killed_process(among: Path) -> Path:
    ended = subprocess.run(
        [sys.executable, "-c", _LEAVE_A_FOLDER],
        env={**os.environ, "TMPDIR": str(among)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    left = Path(ended.stdout.strip())
    assert left.parent == among
    return left


def test_the_folder_of_a_killed_run_is_removed_with_its_files(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    (left / "history").mkdir()
    (left / "history" / "moorage.sqlite").touch()
    forks.remove_left_folders(tmp_path)
    assert not left.exists()


def test_the_folder_of_a_running_process_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = Path(forks.new_folder())
    forks.remove_left_folders(tmp_path)
    assert own.is_dir()


@pytest.mark.parametrize("name", ["moorage-simulation-of", "moorage-simulation-of-me", "moorage-1-x", "other"])
def test_a_folder_that_names_no_process_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    forks.remove_left_folders(tmp_path)
    assert (tmp_path / name).is_dir()
