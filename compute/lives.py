"""The present life of each host of an agent, as its cell has last answered."""

import threading
from collections.abc import Collection, Mapping


class Lives:
    """Lives by host, for several threads. A cell of the former release names none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lives: dict[str, int] = {}

    def note(self, lives: Mapping[str, int]) -> None:
        """Record the present lives of hosts."""
        with self._lock:
            self._lives.update(lives)

    def of_host(self, host: str) -> int | None:
        """Return the life of a host, if it is known."""
        with self._lock:
            return self._lives.get(host)

    def of_hosts(self, hosts: Collection[str]) -> dict[str, int]:
        """Return the lives that are known of these hosts."""
        with self._lock:
            return {host: self._lives[host] for host in hosts if host in self._lives}
