"""Test the pytest plug-in of the package, as docs/harness.md shows it."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/harness.md"
#: Unused plug-ins: to import the second one takes longer than to start the cloud.
LEFT_OUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
MISUSED = """
import pytest

@pytest.mark.moorage_cloud(host=3)
def test_misspelt(moorage_cloud): ...

@pytest.mark.moorage_cloud(3)
def test_positional(moorage_cloud): ...

@pytest.mark.moorage_cloud(schedulers=0)
def test_without_a_scheduler(moorage_cloud): ...
"""


def run(folder: Path, module: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(module)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *LEFT_OUT, "test_it.py"],
        cwd=folder, env=environ, text=True, capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_the_test_on_the_page_passes(tmp_path: Path) -> None:
    first = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]

    status, printed = run(tmp_path, first)

    assert (status, "1 passed" in printed) == (0, True), printed


def test_a_marker_with_invalid_arguments_is_an_error_that_names_them(tmp_path: Path) -> None:
    status, printed = run(tmp_path, MISUSED)

    assert (status, "3 errors" in printed) == (1, True), printed
    assert "unexpected keyword argument 'host'" in printed
    assert "takes what a cloud has by name" in printed
    assert "schedulers=0 is not a whole number from 1" in printed
