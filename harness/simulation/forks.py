"""Histories in forked processes: each begins from the same state of this one, whichever ran before."""

import gc
import json
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import IO, NamedTuple

from harness import cloud
from harness.simulation.history import Outcome, run_story
from harness.simulation.story import Story, draw

#: Seconds of the machine after which a history is given up: it goes round in circles.
_LONGEST = 300
#: Where the files of a cloud are in memory, if the machine has that.
_IN_MEMORY = "/dev/shm"  # noqa: S108


def prepare() -> None:
    """Do once what every history would do otherwise: import everything, and compile the statements."""
    logging.disable(logging.CRITICAL)
    if os.access(_IN_MEMORY, os.W_OK):
        tempfile.tempdir = _IN_MEMORY
    cloud._empty_schemas()  # noqa: SLF001  # made once a process
    outcome = run_here(draw("to warm up", 25))
    if outcome.broken:
        # It is found again by the seeds, and told there.
        sys.stderr.write(f"while warming up: {outcome.broken}\n")


def run_here(story: Story) -> Outcome:
    """Run a story in this process."""
    with tempfile.TemporaryDirectory(prefix="moorage-simulation-") as folder:
        former, tempfile.tempdir = tempfile.tempdir, folder
        try:
            return run_story(story)
        finally:
            tempfile.tempdir = former


def outcomes(stories: Iterable[Story], at_once: int = 1) -> Iterator[tuple[Story, Outcome]]:
    """Run stories in processes of their own, so many at once; yield each with its outcome as it ends."""
    gc.collect()
    gc.freeze()
    running: dict[int, _Running] = {}
    waiting = iter(stories)
    try:
        while True:
            while len(running) < at_once and (story := next(waiting, None)) is not None:
                forked = _fork(story)
                running[forked.answer.fileno()] = forked
            if not running:
                return
            for number in select.select(list(running), [], [])[0]:
                forked = running.pop(number)
                yield forked.story, forked.end()
    finally:
        # Nobody asks for more: those that are under way are of no use.
        for forked in running.values():
            os.kill(forked.process, signal.SIGKILL)
            forked.end()


class _Running(NamedTuple):
    """A history under way."""

    story: Story
    process: int
    answer: IO[bytes]
    folder: str

    def end(self) -> Outcome:
        """Wait for its end, remove its files, and return what has come of it."""
        text = self.answer.read()
        self.answer.close()
        _, status = os.waitpid(self.process, 0)
        shutil.rmtree(self.folder, ignore_errors=True)
        if not text:
            return Outcome(f"the process of the history has ended with status {status}", "", 0, 0, 0.0)
        return Outcome(**json.loads(text))


def outcome_of(story: Story) -> Outcome:
    """Run one story in a process of its own."""
    [(_story, outcome)] = outcomes([story])
    return outcome


def _fork(story: Story) -> _Running:
    sys.stdout.flush()
    sys.stderr.flush()
    folder = tempfile.mkdtemp(prefix="moorage-simulation-")
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return _Running(story, process, os.fdopen(read, "rb"), folder)
    # From here on this is the history's process, which ends without cleaning up: crashed tasks are left in it.
    status = 1
    with suppress(BaseException):
        os.close(read)
        gc.disable()
        signal.alarm(_LONGEST)
        tempfile.tempdir = folder
        try:
            outcome = run_story(story)
        except BaseException as fault:  # noqa: BLE001 - whatever it is, it is told
            words = "".join(traceback.format_exception(fault))
            outcome = Outcome(f"the simulation itself fails: {words}", "", 0, 0, 0.0)
        with os.fdopen(write, "wb") as answer:
            answer.write(json.dumps(asdict(outcome)).encode())
        status = 0
    os._exit(status)
