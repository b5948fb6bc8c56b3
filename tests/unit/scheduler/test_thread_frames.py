"""Test that looking at the stacks of threads ends, whatever a garbage collection does meanwhile."""

import subprocess
import sys

# Each look allocates, each allocation collects, and each collection lets another thread begin or end.
_SCRIPT = """
import gc
import threading
import time
from scheduler.plugins.watch import current_frames

class Garbage:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.001)

def begin_and_end():
    for _ in range(2000):
        threading.Thread(target=int).start()

other = threading.Thread(target=begin_and_end)
other.start()
gc.set_threshold(1)
while other.is_alive():
    Garbage()
    assert threading.get_ident() in current_frames()
assert gc.isenabled()
"""


def test_threads_that_begin_and_end_during_a_garbage_collection_do_not_block_a_look_at_the_stacks() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=120)
