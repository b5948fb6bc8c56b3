"""The processor time of processes, as benchmarks count it."""

import subprocess

from harness.bench import usage

#: Works in a child process, prints "done" after its end, and waits for a line.
_WORKS = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; true); echo done; read line"


def test_the_time_of_an_ended_process_counts_for_its_parent() -> None:
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


def test_an_ended_process_counts_as_zero() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert usage.cpu_seconds({"gone": process.pid})["gone"] == 0
