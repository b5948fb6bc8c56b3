"""The placement role in this process: messages are handed to its endpoints without any bus in between."""

import logging
from typing import Any, Protocol

from oslo_config import cfg

from moorage import errors, failpoints
from moorage.bus.bus import handlers
from moorage.db.database import Database
from moorage.messages import wire
from moorage.messages.wire import Message, R
from placement_store.db.names import ResourceClassNames, sync
from placement_store.schema import MAIN
from placement_store.service import endpoints

LOG = logging.getLogger(__name__)


class Placement(Protocol):
    """Whoever answers topic `placement`: a client of the bus, or :class:`Direct`."""

    def call(self, message: Message[R]) -> R:
        """Return what ``message`` is answered with.

        :raises MoorageError: what the server has raised.
        """


class Direct:
    """Answers topic `placement` from one database, by the same endpoints and the same checks as a service does.

    It may work beside running services: the store itself decides between them.

    :raises SchemaMismatch: the tables are older or newer than this version.
    :raises StoreUnavailable: the database cannot be reached.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str) -> None:
        # Claims and reports of running services may hold what is asked for: it is waited for as they would wait.
        self._database = Database.configured(conf, url, pool_size=2)
        try:
            MAIN.check(self._database)
            sync(self._database)
        except errors.MoorageError:
            self._database.close()
            raise
        services = endpoints(self._database, ResourceClassNames(self._database))
        self._handlers = dict(handlers(services))

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def call(self, message: Message[R]) -> R:
        """Return what ``message`` is answered with; it is checked as one that has come over the bus.

        :raises MoorageError: what the endpoint has raised.
        """
        kind = type(message)
        if kind not in self._handlers:
            raise errors.InvalidRequest(path="$", reason=f"{message.method} is not served on {message.topic}")
        asked = wire.decode_strictly(kind, wire.encode(message))
        reply: R = wire.decode(kind.reply_type(), wire.encode(self._answer(asked)))
        return reply

    def _answer(self, message: Message[Any]) -> Any:
        try:
            with failpoints.within("serve", message.topic, message.method):
                return self._handlers[type(message)](message)
        except errors.MoorageError:
            raise
        except Exception as fault:
            LOG.exception("%s has failed", message.method)
            raise errors.InternalError(kind=type(fault).__name__) from fault
