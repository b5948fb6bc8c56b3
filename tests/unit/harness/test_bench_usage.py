"""The processor time of processes, as benchmarks count it."""

import subprocess

from harness.bench import usage

#: Works in a process of its own, which has ended when it says so, and then waits.
_WORKS = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; true); echo done; read line"


def test_the_time_of_a_process_that_has_ended_stays_with_the_one_that_has_started_it() -> None:
    with subprocess.Popen(["sh", "-c", _WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        seconds = usage.cpu_seconds({"shell": process.pid})
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()

    assert seconds["shell"] > 0.01
    assert seconds["clients"] > 0


def test_a_process_that_is_gone_has_used_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert usage.cpu_seconds({"gone": process.pid})["gone"] == 0
