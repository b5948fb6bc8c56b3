"""The HTTP server of waitress, with a limit for slow requests; it does not spin while it can accept no connection."""

import errno
import logging
import time
from http import HTTPStatus
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.receiver import ChunkedReceiver
from waitress.server import TcpWSGIServer
from waitress.utilities import BadRequest, Error

#: Seconds without accepting connections after an accept has failed for lack of descriptors or memory. The socket stays
#: readable: without this pause the event loop would spin.
_REST = 1.0
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: The longest line between the chunks of a body, and the longest end after them: real ones have some bytes. Arbitrary.
_LONGEST_LINE = 8192

LOG = logging.getLogger(__name__)


class _TooSlow(Error):  # type: ignore[misc]  # waitress has no types
    code = HTTPStatus.REQUEST_TIMEOUT.value
    reason = HTTPStatus.REQUEST_TIMEOUT.phrase


class _RequestParser(HTTPRequestParser):  # type: ignore[misc]
    #: Receives the body, if there is one.
    body_rcv: Any = None

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the request line and the headers, and refuse those that cannot be read, or be read in two ways.

        :raises ParsingError: they are refused: the client gets 400, and the connection is closed.
        """
        try:
            super().parse_header(header_plus)
        except ValueError as fault:
            # Such as `[` in the host of a complete address, or a number of thousands of digits.
            raise ParsingError(f"The request cannot be read: {fault}") from fault
        # Front ends might take the rest of such a body for the next request, or the other way round.
        if "TRANSFER_ENCODING" in self.headers or (self.chunked and "CONTENT_LENGTH" in self.headers):
            raise ParsingError("Transfer-Encoding with Content-Length, or before version 1.1, is refused")
        if self.chunked:
            self.body_rcv = _ChunkedReceiver(self.body_rcv.buf)


class _ChunkedReceiver(ChunkedReceiver):  # type: ignore[misc]
    def received(self, s: bytes) -> int:
        """Read a part of a chunked body, and refuse it if a line between its chunks, or the end after them, is long.

        With each part that arrives, waitress searches such a line from its beginning: megabytes of it took the event
        loop many seconds.
        """
        consumed = int(super().received(s))
        if max(len(self.control_line), len(self.trailer)) > _LONGEST_LINE:
            self.error = BadRequest("A line between chunks, or the end after them, is too long")
        return consumed


class HttpChannel(HTTPChannel):  # type: ignore[misc]
    """One connection."""

    parser_class = _RequestParser
    #: The request that has arrived in part.
    request: Any = None
    began = 0.0
    _active_at = 0.0

    @property
    def last_activity(self) -> float:
        """Return when data were last read or written, by the monotonic clock; waitress sets the time of the day."""
        return self._active_at

    @last_activity.setter
    def last_activity(self, _time_of_day: float) -> None:
        self._active_at = time.monotonic()

    def received(self, data: bytes) -> bool:
        """Read data of one or more requests, and remember when the last one began to arrive."""
        before = self.request
        done = bool(super().received(data))
        if self.request is not None and self.request is not before:
            self.began = time.monotonic()
        return done

    def end_if_slow(self, seconds: float) -> None:
        """Refuse a request that has not arrived completely within this time."""
        with self.requests_lock:
            slow, self.request = self.request, None
            if slow is None or self.requests or time.monotonic() - self.began < seconds:
                self.request = slow
                return
            slow.error = _TooSlow(f"The request did not arrive within {seconds:g} seconds.")
            self.requests.append(slow)
            self.server.add_task(self)


class HttpServer(TcpWSGIServer):  # type: ignore[misc]
    """One listening socket and its connections, in an event loop; requests must arrive within ``receive_timeout``."""

    channel_class = HttpChannel
    #: By the monotonic clock.
    _rests_until = _next_maintenance = float("-inf")
    #: By the time of the day, to which waitress compares it.
    next_channel_cleanup = float("inf")

    def __init__(self, application: Any, receive_timeout: float, **options: Any) -> None:
        self._receive_timeout = receive_timeout
        super().__init__(application, **options)

    def readable(self) -> bool:
        """Maintain the existing connections from time to time, and return whether new ones are accepted now."""
        now = time.monotonic()
        if now >= self._next_maintenance:
            self._next_maintenance = now + self.adj.cleanup_interval
            self.maintenance(now)
        takes = bool(super().readable())
        return takes and now >= self._rests_until

    def accept(self) -> Any:
        """Accept a connection; pause if there are no descriptors or no memory for it."""
        try:
            return super().accept()
        except OSError as fault:
            if fault.errno not in _NOTHING_LEFT:
                raise
            LOG.warning("No connection can be accepted: %s; retrying in %g s", fault, _REST)
            self._rests_until = time.monotonic() + _REST
            return None

    def maintenance(self, now: float) -> None:
        """Close idle connections, and refuse requests that arrive too slowly; ``now`` is by the monotonic clock."""
        super().maintenance(now)
        for channel in list(self.active_channels.values()):
            channel.end_if_slow(self._receive_timeout)
