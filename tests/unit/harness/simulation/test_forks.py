"""Test the folders of forked histories: the next run removes the folder of a run that was killed."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from harness.simulation import forks


@pytest.fixture(autouse=True)
def folders_are_in_the_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_run_is_removed_with_its_files(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        try:
            forks.new_folder()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    [left] = tmp_path.iterdir()
    (left / "history").mkdir()
    (left / "history" / "moorage.sqlite").touch()
    forks.remove_left_folders(tmp_path)
    assert not left.exists()


def test_the_folder_of_a_running_process_stays(tmp_path: Path) -> None:
    own = Path(forks.new_folder())
    forks.remove_left_folders(tmp_path)
    assert own.is_dir()


@pytest.mark.parametrize("name", ["moorage-simulation-of", "moorage-simulation-of-me", "moorage-1-x", "other"])
def test_a_folder_that_names_no_process_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    forks.remove_left_folders(tmp_path)
    assert (tmp_path / name).is_dir()
