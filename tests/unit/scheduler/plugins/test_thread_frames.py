"""Test that looking at the stacks of threads ends, whatever a garbage collection does meanwhile."""

import subprocess
import sys

# A collection that begins within a look runs a finalizer, which lets another thread begin or end.
_SCRIPT = """
import gc
import threading
import time
from scheduler.plugins.watch import current_frames

class Kept:
    pass

class Garbage:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.001)

ended = False

def begin_and_end():
    while not ended:
        threading.Thread(target=int).start()

other = threading.Thread(target=begin_and_end)
other.start()
gc.set_threshold(20)
for look in range(400):
    gc.collect(0)
    Garbage()
    # A different number each time: in some of them the next collection begins within the look.
    kept = [Kept() for _ in range(look % 20)]
    assert threading.get_ident() in current_frames()
ended = True
assert gc.isenabled()
"""


def test_threads_that_begin_and_end_during_a_garbage_collection_do_not_block_a_look_at_the_stacks() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=120)
