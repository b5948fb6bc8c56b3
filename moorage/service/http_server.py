"""The HTTP server of waitress, which does not spin while it cannot accept connections."""

import errno
import logging
import time
from typing import Any

from waitress.server import TcpWSGIServer

#: Seconds without accepting connections after an accept has failed for lack of descriptors or memory. The socket stays
#: readable: without this pause the event loop would spin.
_REST = 1.0
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

LOG = logging.getLogger(__name__)


class HttpServer(TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """One listening socket and its connections, in an event loop."""

    #: By the monotonic clock.
    _rests_until = float("-inf")

    def readable(self) -> bool:
        """Return whether connections are accepted now."""
        takes = bool(super().readable())  # it also maintains the existing connections
        return takes and time.monotonic() >= self._rests_until

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
