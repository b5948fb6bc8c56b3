"""Run the commands with which the guide begins (the README links to it)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.waiting import wait_until

GUIDE = Path(__file__).parents[3] / "docs" / "running.md"


def blocks(kind: str) -> list[str]:
    section = GUIDE.read_text().split("\n## ", 1)[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def logs_of(folder: Path) -> list[str]:
    return [log.read_text() for log in sorted(folder.glob("*.log"))]


def test_the_commands_of_the_guide_build_show_and_delete_instances_on_real_servers(
    mariadb_url: str, rabbitmq_url: str, tmp_path: Path
) -> None:
    [configuration] = blocks("ini")
    setup, daemons, use = blocks("sh")
    for option, url in (("transport_url", rabbitmq_url), ("connection", mariadb_url)):
        configuration = re.sub(rf"^{option} = .*$", f"{option} = {url}", configuration, flags=re.MULTILINE)
    (tmp_path / "moorage.conf").write_text(configuration)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOORAGE_CONFIG": str(tmp_path / "moorage.conf"),
    }

    def bash(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path, env=environment, text=True, capture_output=True, check=False, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    bash(setup)
    running = []
    try:
        for number, line in enumerate(daemons.strip().splitlines()):
            with (tmp_path / f"{number}.log").open("w") as log:
                running.append(subprocess.Popen(line.split(), cwd=tmp_path, env=environment, stdout=log, stderr=log))

        def up() -> bool:
            assert all(process.poll() is None for process in running), logs_of(tmp_path)
            # A command takes as much processor time as the start of a daemon, so run none until all daemons are ready.
            is_ready = all("] Ready" in log for log in logs_of(tmp_path))
            return is_ready and "True" in bash("moorage host list -f value -c up || true")

        wait_until(up, lambda: f"a host to be up\n{logs_of(tmp_path)}", interval=0.1)
        printed = bash(use)
        logs = logs_of(tmp_path)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=60)

    assert "active" in printed
    assert "new disks" in printed
    assert all("Traceback" not in log for log in logs), logs
    ended = [process.returncode for process in running]
    if any(ended):
        # Read the logs again: if a daemon was ended by force, its last line names the work that was still running.
        pytest.fail("\n".join([f"the daemons have ended with {ended}", *logs_of(tmp_path)]), pytrace=False)
