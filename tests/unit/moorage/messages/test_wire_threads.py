"""Test types that several threads decode for the first time at the same moment."""

import subprocess
import sys

import msgspec

from moorage.messages import wire

SCRIPT = """
import sys, threading
from moorage import messages
from moorage.messages import wire
from moorage.errors import InvalidRequest

wire.prepare()
sys.setswitchinterval(1e-6)
kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, wire.Message)]
ready = threading.Barrier(8)

def decode():
    for kind in kinds:
        ready.wait()
        try:
            wire.decode(kind, {"request_id": "x", "agent": "a"})
        except InvalidRequest:
            pass

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(kinds))
"""


def test_many_threads_may_decode_a_prepared_type_for_the_first_time_at_once() -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 30


def test_a_type_that_is_no_value_is_prepared_as_well() -> None:
    class Stored(msgspec.Struct):
        number: int

    wire.prepare()

    assert Stored in wire._PREPARED
