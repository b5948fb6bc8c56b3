"""A conductor that stops sends one part of many acknowledgements that wait, not all of them."""

import threading
import time
from typing import Any, cast

from conductor.engine.acknowledgements import Acknowledgements
from moorage.messages import MAX_INSTANCES, AcknowledgeRequests, Done
from moorage.service.process import Periodic, is_stopping

STEPS = 3 * MAX_INSTANCES


class Placement:
    """A client that answers a message of a periodic task only once that task is asked to stop."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.waits = True
        self.sent: list[int] = []

    def call(self, message: AcknowledgeRequests) -> Done:
        self.sent.append(len(message.request_ids))
        self.begun.set()
        while self.waits and not is_stopping():
            time.sleep(0.001)
        return Done()


def test_a_stop_waits_for_one_part_of_many_acknowledgements() -> None:
    placement = Placement()
    acknowledgements = Acknowledgements(cast(Any, placement))
    acknowledgements.begin()
    for number in range(STEPS):
        acknowledgements.answered(f"request-{number}")
    acknowledgements.recorded()
    periodic = Periodic("acknowledgements of this test", acknowledgements.send, 60.0)

    periodic.start()
    assert placement.begun.wait(10)
    periodic.stop()
    assert placement.sent == [MAX_INSTANCES]

    placement.waits = False
    acknowledgements.send()
    assert sum(placement.sent) == STEPS
