"""What takes its time on fake hosts: spawns, and death."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# The longest that one wait of the standard library may be told to last.
_LONGEST_WAIT = threading.TIMEOUT_MAX


class Spawn:
    """A spawn that is under way."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.stubborn = False
        self.cut = False
        self.host_died = False


class Timeline:
    """The spawns under way, and the hosts that are dead."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spawns: dict[tuple[str, str], Spawn] = {}
        self._dead_until: dict[str, float] = {}
        self._closed = False

    def close(self) -> None:
        """Cut every spawn short, whatever it is like."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def die(self, host: str, seconds: float) -> None:
        """Have a host dead for so long; the spawns under way on it do not survive it."""
        with self._changed:
            self._dead_until[host] = time.monotonic() + seconds
            for spawn in self._spawns.values():
                spawn.host_died = spawn.host_died or spawn.host == host
            self._changed.notify_all()

    def is_dead(self, host: str) -> bool:
        """Tell whether a host is dead now."""
        with self._changed:
            return self._left(host) > 0

    @contextmanager
    def spawning(self, host: str, attempt_id: str) -> Iterator[Spawn]:
        """Have a spawn under way for as long as the block runs."""
        spawn = Spawn(host)
        with self._changed:
            self._spawns[host, attempt_id] = spawn
        try:
            yield spawn
        finally:
            with self._changed:
                del self._spawns[host, attempt_id]

    def pass_time(self, spawn: Spawn, seconds: float, *, stubborn: bool) -> str | None:
        """Wait for so long, and for the host's return if it dies; tell why the spawn has failed, if it has.

        :param stubborn: whether the spawn cannot be cut short from now on.
        """
        end = time.monotonic() + seconds
        with self._changed:
            spawn.stubborn = stubborn
            while True:
                dead = self._left(spawn.host)
                if self._closed:
                    return "the agent ended in the middle of it"
                if dead <= 0 and (ended := _verdict(spawn)) is not None:
                    return ended
                left = dead if dead > 0 else end - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(None if math.isinf(left) else min(left, _LONGEST_WAIT))

    def is_stubborn(self, host: str, attempt_id: str) -> bool:
        """Tell whether a spawn is under way that cannot be cut short."""
        with self._changed:
            spawn = self._spawns.get((host, attempt_id))
            return spawn is not None and spawn.stubborn

    def cut_short(self, host: str, attempt_id: str) -> None:
        """End a spawn, if one is under way."""
        with self._changed:
            if (spawn := self._spawns.get((host, attempt_id))) is not None:
                spawn.cut = True
                self._changed.notify_all()

    def _left(self, host: str) -> float:
        return self._dead_until.get(host, 0.0) - time.monotonic()


def _verdict(spawn: Spawn) -> str | None:
    if spawn.host_died:
        return "the host died in the middle of it"
    return "it was destroyed meanwhile" if spawn.cut else None
