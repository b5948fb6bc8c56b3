"""What a host does before it counts as up again: it destroys what has ended meanwhile, and says what it has.

It destroys upon its cell's records alone, by attempt and claim. A guest that no record names is left running, and is
said to be there like every other; what it is, is for the cell to judge.
"""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence

from compute import cell_messages
from compute.agent import ComputeAgent
from compute.cell_client import CellClient, Interrupted
from compute.driver import Driver
from compute.workers import Workers
from moorage import context, errors, ids
from moorage.messages import MAX_INSTANCES, ListEndedAttempts, ReturnHosts
from moorage.messages.wire import Message, R
from moorage.model import EndedAttempt

LOG = logging.getLogger(__name__)

# Hosts that return together: few enough that what all of them have goes into one message. Arbitrary.
_HOSTS_AT_ONCE = 100


class Returns:
    """Has the hosts return that their cell says are to, in a thread of its own: reports do not wait for it."""

    def __init__(self, driver: Driver, cell: CellClient, agent: ComputeAgent, service: str | None = None) -> None:
        self._driver = driver
        self._lives = agent.lives
        self._cell = cell
        self._agent = agent
        self._service = service
        self._ended = threading.Event()
        self._workers = Workers("return", 1)
        self._lock = threading.Lock()
        self._returning: set[str] = set()
        self._busy = False

    def start(self) -> None:
        """Begin to work."""
        self._workers.start()

    def stop(self, seconds: float) -> None:
        """Repeat nothing any more, and wait for what is under way, within ``seconds``; the next life begins again."""
        self._ended.set()
        self._workers.stop(seconds)

    def note(self, hosts: Collection[str], lives: Mapping[str, int]) -> None:
        """Take note of hosts that are returning, and in which life; all that are still to return are tried again.

        To be called with every answer to a report, which makes the report's interval the one between two tries.
        """
        self._lives.note(lives)
        with self._lock:
            self._returning.update(hosts)
            if self._busy or not self._returning:
                return
            self._busy = True
        self._workers.submit(self._work)

    def _work(self) -> None:
        with self._lock:
            hosts = sorted(self._returning)
        try:
            with context.bound(service=self._service):
                for first in range(0, len(hosts), _HOSTS_AT_ONCE):
                    self._try(hosts[first : first + _HOSTS_AT_ONCE])
        except Interrupted:
            LOG.info("The agent stops before all its hosts have returned")
        finally:
            with self._lock:
                self._busy = False

    def _try(self, hosts: Sequence[str]) -> None:
        try:
            returned = self._return(hosts)
        except errors.MoorageError as fault:
            LOG.warning("%d host(s) have not returned yet: %s", len(hosts), fault)
            return
        with self._lock:
            self._returning.difference_update(returned)

    def _return(self, hosts: Sequence[str]) -> Collection[str]:
        """Return those of ``hosts`` that have done their part.

        :raises MoorageError: the cell refuses; all of them are still returning.
        :raises Interrupted: the agent stops.
        """
        known = [host for host in hosts if self._driver.has_host(host)]
        living = [host for host in known if self._driver.is_alive(host)]
        # As they are before anything is looked at: if a host begins another life meanwhile, all of this is void.
        lives = self._lives.of_hosts(living)
        ready = self._clean(living, lives) if living else []
        if ready:
            self._hand_in(ready, lives)
        # A host of somebody else is none of ours to return, whatever the cell says.
        return {*ready, *(set(hosts) - set(known))}

    def _clean(self, hosts: Sequence[str], lives: Mapping[str, int]) -> list[str]:
        """Destroy what the cell has on record as ended; return the hosts on which nothing of it is left."""
        ended = self._ask(ListEndedAttempts(agent=self._driver.agent, hosts=tuple(hosts)))
        gone: list[EndedAttempt] = []
        held_up: set[str] = set()
        for attempt in ended:
            if self._destroy(attempt):
                gone.append(attempt)
            else:
                held_up.add(attempt.host)
        for first in range(0, len(gone), MAX_INSTANCES):
            self._ask(cell_messages.gone(self._driver.agent, gone[first : first + MAX_INSTANCES], lives))
        return [host for host in hosts if host not in held_up]

    def _destroy(self, ended: EndedAttempt) -> bool:
        """Tell whether nothing is left of an attempt; whatever its driver meets holds up this host, and no other."""
        try:
            self._agent.end(ended)
        except errors.MoorageError as fault:
            LOG.warning("Host %s cannot return yet, attempt %s: %s", ended.host, ended.attempt_id, fault)
        except Exception:
            LOG.exception("Host %s cannot return yet, attempt %s", ended.host, ended.attempt_id)
        else:
            return True
        return False

    def _hand_in(self, hosts: Sequence[str], lives: Mapping[str, int]) -> None:
        """Say what these hosts have, then settle what an earlier life of the agent has left there.

        No build begins there until the cell has answered: an attempt whose guest is not named is lost to it.
        """
        with self._agent.attempts.counting(hosts) as in_hand:
            unfinished = {attempt_id for host in hosts for attempt_id in self._driver.unfinished(host)}
            found = [guest for host in hosts for guest in self._driver.guests(host)]
            named = {guest.attempt_id: guest for guest in [*in_hand, *found]}
            self._ask(
                ReturnHosts(
                    request_id=ids.fresh(),
                    agent=self._driver.agent,
                    hosts=tuple(hosts),
                    guests=tuple(named.values()),
                    lives={host: lives[host] for host in hosts if host in lives},
                )
            )
        LOG.info("%d host(s) have returned, with %d guest(s)", len(hosts), len(named))
        # Those that were stopped are as they should be: their cell, which has ordered it, has nothing to be told.
        stopped = {attempt_id for host in hosts for attempt_id in self._driver.stopped(host)}
        for guest in found:
            if guest.attempt_id not in stopped:
                self._agent.settle(guest, runs=guest.attempt_id not in unfinished)

    def _ask(self, message: Message[R]) -> R:
        return self._cell.until_answered(message, self._ended)
