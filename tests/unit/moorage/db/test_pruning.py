"""A round that deletes expired rows ends with the first part that is not full, and between two parts at a stop."""

import threading
import time

from moorage.service.process import Periodic, is_stopping
from moorage.service.pruning import in_parts


def test_rows_that_expire_meanwhile_do_not_keep_a_round_going() -> None:
    parts = iter([3, 3, 2])
    assert in_parts(lambda: next(parts), 3) == 8
    assert in_parts(lambda: 0, 3) == 0


def test_a_stop_waits_for_one_part_of_a_long_round() -> None:
    begun = threading.Event()

    def some() -> int:
        begun.set()
        return 1

    periodic = Periodic("an endless round of this test", lambda: in_parts(some, 1), 60.0)
    periodic.start()
    assert begun.wait(10)
    stopping = threading.Thread(target=periodic.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    assert not is_stopping()


def test_a_stop_between_two_prunings_of_a_round_begins_no_further_one() -> None:
    begun, second = threading.Event(), []

    def prune() -> None:
        begun.set()
        while not is_stopping():
            time.sleep(0.001)
        in_parts(lambda: second.append("a part") or 0)  # type: ignore[func-returns-value]

    periodic = Periodic("two prunings of this test", prune, 60.0)
    periodic.start()
    assert begun.wait(10)
    periodic.stop()
    assert second == []
