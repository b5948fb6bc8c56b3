"""``python -m harness.simulation``: run many histories, and tell the shortest form of each that goes wrong."""

# ruff: noqa: E402  # what takes references to threads and clocks is imported after they are replaced
import datetime
import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets is part of a history.
    again = [sys.executable, "-m", "harness.simulation", *sys.argv[1:]]
    os.execve(again[0], again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606

from harness.simulation import patches

# By the clock of the machine, which is replaced, too.
today = datetime.date.today().isoformat()
patches.install()

# isort: split
from harness.simulation import command

asked = command.parsed(sys.argv[1:], today)
# It may change what is imported next.
command.load(asked.load)

from harness.simulation import network, store

store.install()
network.install()
status = command.main(asked)
sys.stdout.flush()
sys.stderr.flush()
# At a usual end the interpreter would join the threads of the clouds that have warmed up, and so run these on.
os._exit(status)
