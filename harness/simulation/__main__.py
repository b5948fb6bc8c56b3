"""``python -m harness.simulation``: run many histories, and print the shortest form of each that breaks a promise."""

# ruff: noqa: E402  # what takes references to threads and clocks is imported after they are replaced
import datetime
import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The iteration order of sets is part of a history.
    again = [sys.executable, "-m", "harness.simulation", *sys.argv[1:]]
    os.execve(again[0], again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606

from harness.simulation.machine import patches

# Read before the clock is replaced.
today = datetime.date.today().isoformat()
patches.install()

# isort: split
from harness.simulation import command

asked = command.parsed(sys.argv[1:], today)
# It may change modules that are imported later.
command.load(asked.load)

from harness.simulation.machine import network, store

store.install()
network.install()
status = command.main(asked)
sys.stdout.flush()
sys.stderr.flush()
# A normal exit of the interpreter would join the threads of the clouds of the warm-up, and so continue to run them.
os._exit(status)
