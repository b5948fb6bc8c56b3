"""Test failpoints: the position of a thread names them, and the environment of the process sets their actions."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from harness.waiting import wait_until
from moorage import errors, failpoints


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    failpoints.switch_on("")


def passed_in(name: str, specification: str) -> "subprocess.Popen[str]":
    """Start a process that passes a failpoint three times, under a specification."""
    script = (
        "import sys\n"
        "from moorage import failpoints\n"
        "failpoints.switch_on(sys.argv[2])\n"
        "for turn in range(1, 4):\n"
        "    failpoints.reached(sys.argv[1])\n"
        "    print(turn, flush=True)\n"
    )
    return subprocess.Popen([sys.executable, "-c", script, name, specification], stdout=subprocess.PIPE, text=True)


def test_failpoints_do_nothing_by_default() -> None:
    failpoints.declare("step", "build", "select")
    with failpoints.within("step", "build", "select"):
        failpoints.reached("begin")


def test_a_name_is_where_the_thread_is_and_what_happens_there() -> None:
    names: list[str] = []
    with failpoints.observed(names.append):
        failpoints.reached("commit")
        with failpoints.within("serve", "hall", "greet"):
            failpoints.reached("begin")
            with failpoints.within("step", "build", "select"):
                failpoints.reached("send", "hall", "sing")
            failpoints.reached("reply")
    failpoints.reached("commit")

    assert names == [
        "commit",
        "serve.hall.greet.begin",
        "step.build.select.send.hall.sing",
        "serve.hall.greet.reply",
    ]


def test_an_action_is_taken_at_matching_names_and_at_its_turn() -> None:
    failpoints.switch_on("serve.*.reply=drop@2, answered.hall.sing=drop")

    failpoints.reached("serve.hall.greet.begin")
    failpoints.reached("serve.hall.greet.reply")
    with pytest.raises(failpoints.Dropped):
        failpoints.reached("serve.hall.sing.reply")
    failpoints.reached("serve.hall.greet.reply")
    for _ in range(2):
        with pytest.raises(failpoints.Dropped):
            failpoints.reached("answered", "hall", "sing")


def test_wait_sleeps() -> None:
    failpoints.switch_on("commit=wait:0.2")
    began = time.monotonic()
    failpoints.reached("commit")
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "specification",
    ["commit", "commit=explode", "commit=kill@0", "commit=wait", "commit=kill:3", "commit=drop", "=kill", "a b=kill"],
)
def test_an_invalid_specification_is_refused(specification: str) -> None:
    with pytest.raises(errors.ConfigurationError):
        failpoints.switch_on(f"reply=log, {specification}")


def test_the_command_refuses_an_invalid_specification() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.shell", "cell", "list"],
        env={**os.environ, failpoints.VARIABLE: "commit=explode"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "commit=explode" in done.stderr


def test_kill_ends_the_process_at_its_turn() -> None:
    with passed_in("commit", "commit=kill@3") as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL
    assert output.split() == ["1", "2"]


def test_stop_stops_the_process_until_it_is_continued() -> None:
    with passed_in("commit", "commit=stop@2") as process:
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "the process to stop")
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert output.split() == ["1", "2", "3"]
