"""Dispatch of a server's calls: a call that no endpoint serves is refused before the library begins to handle it."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
import oslo_messaging
from oslo_messaging._utils import version_is_compatible
from oslo_messaging.rpc import dispatcher

from moorage import errors

LOG = logging.getLogger(__name__)

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){1,2}")
#: The longest part of a peer's text in a log line or an answer.
_SHOWN = 100
#: The longest time-out of a monitored call, in seconds. Arbitrary: longer than any caller waits.
_LONGEST_MONITORED = 86_400


@lru_cache(maxsize=1024)  # the library parses both versions at each call
def is_compatible(served: str, version: str) -> bool:
    """Return whether an endpoint takes messages of a version, which is a peer's text."""
    return _VERSION.fullmatch(version) is not None and bool(version_is_compatible(served, version))


class CallDispatcher(dispatcher.RPCDispatcher):  # type: ignore[misc]
    """Finds the endpoint of each call by its method.

    The library would log a refused call as a crash. If the caller asks for heartbeats, it would also begin a thread
    that never ends, and sends them for as long as the caller's process runs.
    """

    def __init__(self, endpoints: Sequence[Any]) -> None:
        super().__init__(list(endpoints), None, oslo_messaging.ExplicitRPCAccessPolicy)
        self._by_method = {
            (endpoint.target.namespace, name): endpoint
            for endpoint in endpoints
            for name in dir(endpoint)
            if self.access_policy.is_allowed(endpoint, name)
        }

    def dispatch(self, incoming: Any) -> Any:
        """Handle a call, and return its encoded answer.

        :raises ExpectedException: the call is refused, or its answer is an error.
        """
        message = incoming.message
        if (refusal := self._refusal(message)) is not None:
            LOG.warning("A message is refused: %s", refusal)
            refused = oslo_messaging.ExpectedException()  # the library does not log this class as a crash
            refused.exc_info = (type(refusal), refusal, None)
            raise refused
        if _asks_for_heartbeats(incoming):
            return super().dispatch(incoming)
        method = message["method"]
        endpoint = self._by_method[message.get("namespace"), method]
        return self._do_dispatch(endpoint, method, incoming.ctxt, message.get("args", {}))

    def _refusal(self, message: Mapping[str, Any]) -> Exception | None:
        """Return the error for a message that no endpoint serves, else None. Its parts may be of any type."""
        namespace, method, version = message.get("namespace"), message.get("method"), message.get("version", "1.0")
        if isinstance(version, str) and isinstance(namespace, str | None):
            endpoint = self._by_method.get((namespace, method)) if isinstance(method, str) else None
            if endpoint is not None and is_compatible(endpoint.target.version, version):
                return None if isinstance(message.get("args", {}), dict) else _NOT_AN_OBJECT
            others = (one.target.version for known, one in self._by_method.items() if known[0] == namespace)
            if any(is_compatible(served, version) for served in others):
                unserved: Exception = dispatcher.NoSuchMethod(str(method)[:_SHOWN])
                return unserved
        too_new: Exception = dispatcher.UnsupportedVersion(str(version)[:_SHOWN], method=str(method)[:_SHOWN])
        return too_new


def _asks_for_heartbeats(incoming: Any) -> bool:
    """Return whether a caller monitors its call, by a number of seconds that the library can wait."""
    seconds = incoming.client_timeout
    return isinstance(seconds, int | float) and 0 < seconds <= _LONGEST_MONITORED


_NOT_AN_OBJECT = errors.InvalidRequest(path="$", reason="Expected `object`")
