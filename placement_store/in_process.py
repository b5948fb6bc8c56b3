"""Serve topic `placement` within this process: messages go to the dispatcher without a bus."""

import logging
from typing import Any

from oslo_config import cfg

from moorage import errors, failpoints
from moorage.db.database import Database
from moorage.messages import wire
from moorage.messages.wire import Message, R
from placement_store.db.names import sync
from placement_store.dispatcher import Dispatcher
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)


class InProcessPlacement:
    """Serve topic `placement` from one database, by the same functions and with the same checks as a service.

    It may run at the same time as services: the transactions of the store resolve conflicts between them.

    :raises SchemaMismatch: the tables are older or newer than this version.
    :raises StoreUnavailable: the database cannot be reached.
    """

    def __init__(self, conf: cfg.ConfigOpts, url: str) -> None:
        # Transactions of running services may hold locks: this process waits for them as long as a service does.
        self._database = Database.configured(conf, url, pool_size=2)
        try:
            MAIN.check(self._database)
            sync(self._database)
        except errors.MoorageError:
            self._database.close()
            raise
        self._dispatcher = Dispatcher(self._database)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def call(self, message: Message[R]) -> R:
        """Serve ``message`` and return the reply; it is decoded and checked like one from the bus.

        :raises MoorageError: the error that the function of the store has raised.
        """
        kind = type(message)
        received = wire.decode_strictly(kind, wire.encode(message))
        reply: R = wire.decode(kind.reply_type(), wire.encode(self._serve(received)))
        return reply

    def _serve(self, message: Message[Any]) -> Any:
        try:
            with failpoints.within("serve", message.topic, message.method):
                return self._dispatcher.call(message)
        except errors.MoorageError:
            raise
        except Exception as fault:
            LOG.exception("%s has failed", message.method)
            raise errors.InternalError(kind=type(fault).__name__) from fault
