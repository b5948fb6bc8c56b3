"""The return of hosts: before a host counts as up again, its ended attempts are destroyed and its guests reported.

A guest is destroyed only if a record of the cell names its attempt and claim. An unknown guest, which no record names,
is left running and is reported like every other guest; the cell decides what it is.
"""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from compute import cell_messages
from compute.agent import ComputeAgent
from compute.cell_client import AT_FAULT, CellClient, Interrupted
from compute.cell_messages import halves, in_batches
from compute.driver import Driver
from compute.workers import Workers
from moorage import errors, ids
from moorage.messages import MAX_INSTANCES, ListEndedAttempts, ReturnHosts
from moorage.messages.wire import Message, R
from moorage.model import EndedAttempt, Guest

LOG = logging.getLogger(__name__)

# The most hosts that return together, and the most guests in one message (more only if one host has more). A message
# may have twice as many. Arbitrary.
_HOSTS_AT_ONCE = 100
_GUESTS_AT_ONCE = 10_000
# Seconds without the end of any destroy after which a return goes on without those in progress. Arbitrary.
_DESTROY_PATIENCE = 5.0


class Returns:
    """Returns the hosts that the cell names, in a thread of its own: reports do not wait for it."""

    def __init__(self, driver: Driver, cell: CellClient, agent: ComputeAgent) -> None:
        self._driver = driver
        self._lives = agent.lives
        self._cell = cell
        self._agent = agent
        self._ended = threading.Event()
        self._workers = Workers("return", 1)
        self._lock = threading.Lock()
        self._returning: set[str] = set()
        #: The number of the last report whose answer has been noted.
        self._noted = 0
        self._busy = False

    def start(self) -> None:
        """Start the thread."""
        self._workers.start()

    def stop(self, seconds: float) -> None:
        """Repeat no more messages, and wait ``seconds`` for the return in progress; a restart begins it again."""
        self._ended.set()
        self._workers.stop(seconds)

    def note(self, hosts: Collection[str], lives: Mapping[str, int], number: int) -> None:
        """Add hosts that have to return, with their lives, and retry all hosts that have not returned yet.

        This is called with every answer to a report: hosts are retried at the interval of the reports. So are attempts
        that the other hosts did not answer.

        :param number: the number of the report. An answer to an earlier report than the last one is ignored: it may
            have the former life of a host that has returned since.
        """
        with self._lock:
            if number < self._noted:
                return
            self._noted = number
            self._lives.update(lives)
            self._returning.update(hosts)
            returning = frozenset(self._returning)
        self._agent.settle_unanswered(returning)
        with self._lock:
            if self._busy or not self._returning:
                return
            self._busy = True
        self._workers.submit(self._work)

    def _work(self) -> None:
        with self._lock:
            hosts = sorted(self._returning)
        try:
            for batch in in_batches(hosts, _HOSTS_AT_ONCE):
                self._try(batch)
        except Interrupted:
            LOG.info("The agent stops before all its hosts have returned")
        finally:
            with self._lock:
                self._busy = False

    def _try(self, hosts: Sequence[str]) -> None:
        """Return hosts; halve a refused batch, so that the guests of one bad host do not delay the others."""
        try:
            returned = self._return(hosts)
        except AT_FAULT as refusal:
            if len(hosts) == 1:
                LOG.error("Host %s cannot return, its guests are refused: %s", hosts[0], refusal)
                return
            for half in halves(hosts):
                self._try(half)
            return
        except errors.MoorageError as fault:
            LOG.warning("%d host(s) have not returned yet: %s", len(hosts), fault)
            return
        with self._lock:
            self._returning.difference_update(returned)

    def _return(self, hosts: Sequence[str]) -> Collection[str]:
        """Carry out the return of hosts; return those that have returned.

        :raises MoorageError: the cell refuses; none of them has returned.
        :raises Interrupted: the agent stops.
        """
        owned = self._agent.owned(hosts)
        living = self._agent.living([host for host, is_own in owned.items() if is_own])
        # Read before everything else: if a host begins another life meanwhile, the cell ignores this return.
        lives = {host: self._lives[host] for host in living if host in self._lives}
        ready = self._clean(living, lives) if living else []
        returned = self._hand_in(ready, lives) if ready else []
        # A host of another agent is dropped: this agent cannot return it.
        return {*returned, *(host for host, is_own in owned.items() if not is_own)}

    def _clean(self, hosts: Sequence[str], lives: Mapping[str, int]) -> list[str]:
        """Destroy the attempts that the cell has recorded as ended; return the hosts on which none of them is left."""
        ended = self._ask(ListEndedAttempts(agent=self._driver.agent, hosts=tuple(hosts)))
        outcomes = {self._agent.begin_destroy(attempt): attempt for attempt in ended}
        _wait_while_some_end(outcomes)
        gone = [attempt for outcome, attempt in outcomes.items() if _is_gone(outcome, attempt)]
        for batch in in_batches(gone, MAX_INSTANCES):
            self._ask(cell_messages.gone(self._driver.agent, batch, lives))
        left = {attempt.attempt_id for attempt in ended} - {attempt.attempt_id for attempt in gone}
        held_up = {attempt.host for attempt in ended if attempt.attempt_id in left}
        return [host for host in hosts if host not in held_up]

    def _hand_in(self, hosts: Sequence[str], lives: Mapping[str, int]) -> list[str]:
        """Report the guests of these hosts, then complete the attempts from before the agent's restart.

        No build begins there until the cell has answered: the cell takes an attempt as lost if its guest is not named.

        :return: the hosts that were reported; a fault of the driver delays only its own host.
        """
        with self._agent.attempts.counting(hosts) as in_hand:
            listed = [found for host in hosts if (found := self._list(host, in_hand)) is not None]
            for part in in_batches(listed, _GUESTS_AT_ONCE, lambda found: len(found.named)):
                self._ask(
                    ReturnHosts(
                        request_id=ids.fresh(),
                        agent=self._driver.agent,
                        hosts=tuple(found.host for found in part),
                        guests=tuple(guest for found in part for guest in found.named),
                        lives={found.host: lives[found.host] for found in part if found.host in lives},
                    )
                )
        LOG.info("%d host(s) have returned, with %d guest(s)", len(listed), sum(len(found.named) for found in listed))
        for found in listed:
            for guest in found.guests:
                # Stopped guests need no report: their cell has ordered the stop.
                if guest.attempt_id not in found.stopped:
                    self._agent.settle(guest, runs=guest.attempt_id not in found.unfinished)
        return [found.host for found in listed]

    def _list(self, host: str, in_hand: Sequence[Guest]) -> "_Guests | None":
        """Return the guests of a host, or None if the driver cannot list them."""
        try:
            unfinished = frozenset(self._driver.unfinished(host))
            guests = tuple(self._driver.guests(host))
            stopped = frozenset(self._driver.stopped(host))
        except errors.MoorageError as fault:
            LOG.warning("Host %s cannot return yet, its guests are unknown: %s", host, fault)
            return None
        except Exception:
            LOG.exception("Host %s cannot return yet, its guests are unknown", host)
            return None
        begun = [guest for guest in in_hand if guest.host == host]
        named = {guest.attempt_id: guest for guest in [*begun, *guests]}
        return _Guests(host, guests, tuple(named.values()), unfinished, stopped)

    def _ask(self, message: Message[R]) -> R:
        return self._cell.unless_ended(message, self._ended)


def _wait_while_some_end(outcomes: Collection[Future[None]]) -> None:
    """Wait until all destroys have ended, or until none has ended for a while: a driver may hang in one."""
    waiting, before = set(outcomes), len(outcomes) + 1
    while waiting and len(waiting) < before:
        before = len(waiting)
        waiting = wait(waiting, _DESTROY_PATIENCE).not_done


def _is_gone(outcome: Future[None], ended: EndedAttempt) -> bool:
    """Return whether nothing of an attempt is left. A fault of the driver delays only the attempt's host."""
    fault = outcome.exception() if outcome.done() else errors.RequestInProgress(request_id=ended.attempt_id)
    if fault is not None:
        is_expected = isinstance(fault, errors.MoorageError)
        level, trace = (logging.WARNING, None) if is_expected else (logging.ERROR, fault)
        LOG.log(level, "Host %s cannot return yet, attempt %s: %s", ended.host, ended.attempt_id, fault, exc_info=trace)
    return fault is None


@dataclass(frozen=True, slots=True)
class _Guests:
    """The guests of a host that returns."""

    host: str
    #: The guests that the driver has.
    guests: tuple[Guest, ...]
    #: The same, with the guests of attempts in progress, which may not exist yet.
    named: tuple[Guest, ...]
    #: The attempts whose guests were never completed, and those whose guests are stopped.
    unfinished: frozenset[str]
    stopped: frozenset[str]
