"""A proxy on one address: connections can go silent, as on a network that loses all packets; the server can change."""

import contextlib
import selectors
import socket
import threading
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
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._forward(key.fileobj)

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

    def _forward(self, source: socket.socket) -> None:
        with self._lock:
            target = self._peers.get(source)
            if target is None:  # became silent during this round
                return
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(65536)
                target.sendall(data)
            if not data:
                for one in (source, target):
                    self._selector.unregister(one)
                    del self._peers[one]
                    one.close()

    def _mute(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._peers[one]
        self._silent.append(one)
