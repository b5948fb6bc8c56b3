"""Histories in forked processes: each starts from a cloud that has just started and that no other history has changed.

This process imports all modules and compiles the statements. A starter is forked from it and starts a cloud by a seed.
The starter forks a process for each history that begins with this cloud.
"""

import ctypes
import gc
import logging
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

from harness import memory_folders
from harness.cloud import _empty_schemas
from harness.simulation.cloud import SimulatedCloud
from harness.simulation.history import Outcome, in_words, run_story, start_cloud
from harness.simulation.machine import store
from harness.simulation.story import Story, draw

#: Processor seconds after which a history is ended, because it loops.
_LONGEST = 100
#: The number of histories that this process runs first. After only one, each later history would compile 34 statements.
_WARM_UPS = 3
#: The option of prctl(2) that sets the signal which a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def prepare() -> None:
    """Do once what otherwise each history would do: import all modules, and compile the statements."""
    logging.disable(logging.CRITICAL)
    if place := memory_folders.place():
        tempfile.tempdir = str(place)
    memory_folders.remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=memory_folders.prefix()) as folder:
        former, tempfile.tempdir = tempfile.tempdir, folder
        try:
            _empty_schemas()  # made once a process
            warmed_up = [_warm_up(f"to warm up, {number}") for number in range(_WARM_UPS)]
        finally:
            tempfile.tempdir = former
    for outcome in warmed_up:
        if outcome.broken:
            # The seeded histories find it again, and report it.
            sys.stderr.write(f"while warming up: {outcome.broken}\n")
    gc.collect()
    gc.freeze()


def _warm_up(seed: str) -> Outcome:
    return _outcome(lambda: run_story(draw(seed), start_cloud(seed)))


def outcomes(stories: Iterable[Story], at_once: int = 1) -> Iterator[tuple[Story, Outcome]]:
    """Run stories, at most ``at_once`` at the same time; yield each with its outcome when it ends."""
    groups = groupby(stories, key=lambda story: story.start)
    running: dict[int, tuple[Starter, list[Story]]] = {}
    try:
        while True:
            while len(running) < at_once and (group := next(groups, None)) is not None:
                starter, left = Starter(group[0]), list(group[1])
                running[starter.fileno()] = starter, left
                starter.send(left[0])
            if not running:
                return
            for number in select.select(list(running), [], [])[0]:
                starter, left = running[number]
                story, outcome = left.pop(0), starter.received()
                if left:
                    starter.send(left[0])
                else:
                    del running[number]
                    starter.close()
                yield story, outcome
    finally:
        # The caller wants no more outcomes, so the stories under way are not needed.
        for starter, _left in running.values():
            starter.close()


class Starter:
    """A process that starts a cloud by a seed, and runs stories one after the other, each in a fork of its own."""

    _all: "set[Starter]" = set()  # noqa: RUF012 - of this process

    def __init__(self, seed: str) -> None:
        self._folder = memory_folders.new()
        (its_stories, self._stories), (self._outcomes, its_outcomes) = Pipe(duplex=False), Pipe(duplex=False)
        self._process = _forked(lambda: self._serve(seed, its_stories, its_outcomes))
        its_stories.close()
        its_outcomes.close()
        Starter._all.add(self)

    def outcome_of(self, story: Story) -> Outcome:
        """Run a story and return its outcome."""
        self.send(story)
        return self.received()

    def send(self, story: Story) -> None:
        """Start to run a story."""
        # If the starter has ended, its missing answer will show that.
        with suppress(BrokenPipeError):
            self._stories.send(story)

    def received(self) -> Outcome:
        """Wait for the end of the story that was sent last, and return its outcome."""
        try:
            outcome: Outcome = self._outcomes.recv()
        except EOFError:
            return Outcome("the process that starts clouds has ended")
        return outcome

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a story has ended."""
        return self._outcomes.fileno()

    def close(self) -> None:
        """End the process together with the history that it runs, and remove the files."""
        Starter._all.remove(self)
        self._close_pipes()
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_pipes(self) -> None:
        self._stories.close()
        self._outcomes.close()

    def _serve(self, seed: str, stories: Connection, outcomes: Connection) -> None:
        # The pipes of this starter and of the others: a reader sees the end of a pipe only if no other process has it
        # open.
        for starter in (self, *Starter._all):
            starter._close_pipes()  # noqa: SLF001
        tempfile.tempdir = self._folder
        signal.setitimer(signal.ITIMER_PROF, _LONGEST)
        started: list[SimulatedCloud] = []

        def start() -> Outcome:
            cloud = start_cloud(seed)
            store.let_go()
            started.append(cloud)
            return Outcome(None)

        outcome = _outcome(start)
        with suppress(EOFError):
            while True:
                story: Story = stories.recv()
                outcomes.send(_in_a_fork(story, *started) if started else outcome)


def _in_a_fork(story: Story, started: SimulatedCloud) -> Outcome:
    """Run a story in its own process, on a copy of the files of a started cloud."""
    copy = memory_folders.new()
    read, write = Pipe(duplex=False)

    def run() -> None:
        signal.setitimer(signal.ITIMER_PROF, _LONGEST)
        shutil.copytree(started.folder, copy, dirs_exist_ok=True)
        store.take_up(str(started.folder), copy)
        write.send(_outcome(lambda: run_story(story, started)))

    process = _forked(run)
    write.close()
    with read:
        try:
            outcome: Outcome | None = read.recv()
        except EOFError:
            outcome = None
    _, status = os.waitpid(process, 0)
    shutil.rmtree(copy, ignore_errors=True)
    return outcome or Outcome(f"the process of the history has ended with status {status}")


def _outcome(run: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of a run, even if the run fails."""
    try:
        return run()
    except BaseException as fault:  # noqa: BLE001 - every error is reported
        return Outcome(in_words(fault) or f"the simulation itself fails: {''.join(traceback.format_exception(fault))}")


def _forked(do: Callable[[], Any]) -> int:
    """Call a function in a fork of this process; return its id. The fork ends without cleaning up, as it has tasks."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    process = os.fork()
    return process if process else _do_and_end(do, parent)


def _do_and_end(do: Callable[[], Any], parent: int) -> NoReturn:
    status = 1
    try:
        # If the parent ends in any way, nobody waits for this process's result.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)
        gc.disable()
        do()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the process ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
