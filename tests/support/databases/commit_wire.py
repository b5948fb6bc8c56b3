"""A connection to MariaDB on which the answer to a COMMIT is lost."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

#: The form in which PyMySQL sends it: the command byte of a query, and the query.
COMMIT = b"\x03COMMIT"
#: Galera's answer to a COMMIT that may or may not have been carried out: an error packet with this code.
_SAYS_NOTHING = b"\xff" + (1180).to_bytes(2, "little") + b"#HY000Got error 6 during COMMIT"
REFUSED = len(_SAYS_NOTHING).to_bytes(3, "little") + b"\x01" + _SAYS_NOTHING


class Wire:
    """Forwards bytes between a client and MariaDB, and loses the answer to the next COMMIT on request.

    ``passing`` determines whether MariaDB still gets that COMMIT. ``loss`` determines what happens to the client: its
    connection is cut, or goes silent, or returns an error.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cutting = self._passing = False
        self._loss = "cut"
        self._ended = threading.Event()
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_commit(self, *, passing: bool, loss: str) -> None:
        self._cutting, self._passing, self._loss = True, passing, loss

    def close(self) -> None:
        self._ended.set()
        # A shutdown wakes a thread that waits in accept(); closing the socket does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, contextlib.suppress(OSError):
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    data = client.recv(65536)
                    if self._cuts(data):
                        if self._passing:
                            server.sendall(data)
                            # MariaDB has finished when it answers; nobody receives this answer.
                            server.recv(65536)
                        if self._loss == "silent":
                            self._ended.wait()
                        if self._loss != "error 1180":
                            return
                        client.sendall(REFUSED)
                        continue
                    server.sendall(data)
                else:
                    data = server.recv(65536)
                    client.sendall(data)
                if not data:
                    return

    def _cuts(self, data: bytes) -> bool:
        if not self._cutting or COMMIT not in data:
            return False
        self._cutting = False
        self.cuts += 1
        return True


@pytest.fixture(name="wire")
def commit_wire(mariadb_url: str) -> Iterator[Wire]:
    where = make_url(mariadb_url)
    wire = Wire(where.host or "127.0.0.1", where.port or 3306)
    yield wire
    wire.close()
