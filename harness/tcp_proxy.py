"""A proxy on one address: connections can go silent, as on a network that loses all packets, or answers can be late.

The server can change.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from typing import Literal, Self

_Address = tuple[str, int]


class TcpProxy:
    """Forwards connections to a server, from one thread.

    A silent connection stays open on both sides. No data pass it, and neither side gets an error.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server: _Address = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._silent: list[socket.socket] = []
        self._servers: set[socket.socket] = set()
        self._delay = 0.0
        #: What servers have sent and clients have not got yet: when it is due, the server's socket, and the data.
        self._late: deque[tuple[float, socket.socket, bytes]] = deque()
        self._new_are: Literal["forwarded", "silent", "refused"] = "forwarded"
        self._lock = threading.Lock()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="tcp proxy", daemon=True)
        self._thread.start()

    def go_silent(self, *, new_too: bool = False) -> None:
        """Lose all further data of the current connections and, with ``new_too``, of new ones until ``resume``."""
        with self._lock:
            self._new_are = "silent" if new_too else "forwarded"
            for one in list(self._peers):
                self._mute(one)
        self._wake()

    def resume(self) -> None:
        """Forward new connections. Silent connections stay silent, as if a firewall had dropped their state."""
        with self._lock:
            self._new_are = "forwarded"

    def refuse(self) -> None:
        """Cut the current connections, and new ones until ``resume``, as if no server were running."""
        with self._lock:
            self._new_are = "refused"
            for one in list(self._peers):
                self._mute(one)
                one.shutdown(socket.SHUT_RDWR)
        self._wake()

    def slow_down(self, seconds: float) -> None:
        """Let everything that the server sends from now on arrive so many seconds late."""
        self._delay = seconds

    def switch(self, host: str, port: int) -> None:
        """Forward new connections to another server; current connections stay with the previous one."""
        self._server = (host, port)

    @property
    def connections(self) -> int:
        """The number of forwarded connections."""
        with self._lock:
            return len(self._peers) // 2

    def close(self) -> None:
        """Close all connections, including the silent ones."""
        self._ended = True
        self._wake()
        self._thread.join()
        for one in (*self._peers, *self._silent, self._listener, self._waker, self._woken):
            one.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        self._waker.send(b".")

    def _run(self) -> None:
        while not self._ended:
            for key, _ in self._selector.select(self._late[0][0] - time.monotonic() if self._late else None):
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._receive(key.fileobj)
            while self._late and self._late[0][0] <= time.monotonic():
                _, source, data = self._late.popleft()
                self._forward(source, data)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with self._lock:
            if self._new_are == "silent":
                self._silent.append(client)
                return
            try:
                if self._new_are == "refused":
                    raise ConnectionRefusedError
                server = socket.create_connection(self._server, 5)
            except OSError:
                client.close()
                return
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._peers[one] = other
                self._selector.register(one, selectors.EVENT_READ)
            self._servers.add(server)

    def _receive(self, source: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65536)
        # Data that are late keep the order of those after them.
        if source in self._servers and data and (self._delay or self._late):
            self._late.append((time.monotonic() + self._delay, source, data))
        else:
            self._forward(source, data)

    def _forward(self, source: socket.socket, data: bytes) -> None:
        """Pass data on; without data, or if they cannot be passed on, close the connection."""
        with self._lock:
            target = self._peers.get(source)
            if target is None:  # became silent or was closed in the meantime
                return
            try:
                target.sendall(data)
            except OSError:
                data = b""
            if not data:
                for one in (source, target):
                    self._selector.unregister(one)
                    del self._peers[one]
                    self._servers.discard(one)
                    one.close()

    def _mute(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._peers[one]
        self._servers.discard(one)
        self._silent.append(one)
