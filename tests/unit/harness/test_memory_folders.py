"""Test folders of runs: the next run removes the folder of a run that was killed."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from harness import memory_folders


@pytest.fixture(autouse=True)
def folders_are_in_the_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_run_is_removed_with_its_files(tmp_path: Path) -> None:
    process = os.fork()
    if not process:
        try:
            memory_folders.new()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    [left] = tmp_path.iterdir()
    (left / "history").mkdir()
    (left / "history" / "moorage.sqlite").touch()
    memory_folders.remove_left(tmp_path)
    assert not left.exists()


def test_the_folder_of_a_running_process_stays(tmp_path: Path) -> None:
    own = Path(memory_folders.new())
    memory_folders.remove_left(tmp_path)
    assert own.is_dir()


@pytest.mark.parametrize("name", ["moorage-run-of", "moorage-run-of-me", "moorage-1-x", "other"])
def test_a_folder_that_names_no_process_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    memory_folders.remove_left(tmp_path)
    assert (tmp_path / name).is_dir()


def test_memory_is_not_used_if_too_little_of_it_is_free() -> None:
    assert memory_folders.place(room=2**60) is None
