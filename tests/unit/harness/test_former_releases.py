"""Test which interpreters the drill of an upgrade takes for another release."""

from pathlib import Path

import pytest

from harness.drills import upgrade


def test_the_other_release_may_be_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho another release\n")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    assert upgrade._checked("bin/python") == str(python)
