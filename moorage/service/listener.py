"""HTTP listeners within a service's process: for Prometheus, for the supervisor of the process, and for operators."""

import logging
import threading
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.task import ThreadedTaskDispatcher

from moorage import errors
from moorage.addresses import address
from moorage.service import probes
from moorage.service.http_server import HttpServer
from moorage.service.readiness import Readiness

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOG = logging.getLogger(__name__)

#: The number of threads for requests that have arrived, and of connections: a prober, a scraper, an operator. A slow
#: client occupies a connection but no thread. Arbitrary.
_THREADS = 2
_CONNECTIONS = 50
#: Headers, with the request line, and bodies must be shorter: both are read before the client is authenticated. No
#: request needs a body. The names of some hosts, a token and the headers of front ends fit in the headers.
_HEADER_BYTES = 32 * 1024
_BODY_BYTES = 64 * 1024
#: Seconds within which a whole request must arrive: single bytes would keep a connection for ever, and there are few.
_RECEIVE_SECONDS = 30.0
#: Seconds for which a connection may be silent.
_SILENT_SECONDS = 10
#: The most seconds until a stop is detected.
_TURN_SECONDS = 0.5


class HttpListener:
    """Serve a WSGI application from a separate thread: an event loop reads requests, a few threads answer them.

    :param group: the group of the options for the address, for errors.
    :param options: the names of these options.
    """

    def __init__(
        self,
        application: "WSGIApplication",
        host: str,
        port: int,
        *,
        group: str,
        options: str,
        threads: int = _THREADS,
        connections: int = _CONNECTIONS,
        silent_seconds: int = _SILENT_SECONDS,
    ) -> None:
        self._application = application
        self.host = host
        self.port = port
        self._named = f"[{group}] {options}"
        self._threads = threads
        self._connections = connections
        self._silent_seconds = silent_seconds
        self._channels: dict[int, Any] = {}
        self._ended = threading.Event()
        self._dispatcher = ThreadedTaskDispatcher()
        self._thread = threading.Thread(target=self._run, name=f"listener of [{group}]", daemon=True)

    def start(self) -> None:
        """Begin to listen.

        :raises ConfigurationError: the process cannot listen on the address.
        """
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        try:
            adjustments = Adjustments(
                host=self.host,
                port=self.port,
                connection_limit=self._connections,
                channel_timeout=self._silent_seconds,
                max_request_header_size=_HEADER_BYTES,
                max_request_body_size=_BODY_BYTES,
                cleanup_interval=1,
                asyncore_use_poll=True,
                clear_untrusted_proxy_headers=False,
                ident=None,
            )
            # A name may have several addresses.
            for listened in adjustments.listen:
                HttpServer(
                    self._application,
                    _RECEIVE_SECONDS,
                    map=self._channels,
                    dispatcher=self._dispatcher,
                    adj=adjustments,
                    sockinfo=listened,
                )
        except (OSError, ValueError) as fault:
            wasyncore.close_all(self._channels)
            reason = f"{self._named}: {address(self.host, self.port)} cannot be listened on: {fault}"
            raise errors.ConfigurationError(reason=reason) from fault
        self._dispatcher.set_thread_count(self._threads)
        self._thread.start()

    def stop(self) -> None:
        """Close the listener; an answer in progress is sent if its client reads it at once."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            wasyncore.loop(timeout=_TURN_SECONDS, use_poll=True, map=self._channels, count=1)
        self._dispatcher.shutdown()
        wasyncore.close_all(self._channels)


class Listener(HttpListener):
    """Serve metrics and health checks of a process, from before its service starts until it has stopped."""

    def __init__(self, host: str, port: int, readiness: Readiness) -> None:
        served = probes.application(readiness)
        super().__init__(served, host, port, group="service", options="metrics_host and metrics_port")
        self.readiness = readiness

    @classmethod
    def configured(cls, conf: cfg.ConfigOpts, number: int = 0) -> "Listener | None":
        """Return the listener for ``[service] metrics_port``, or None if the option is not set.

        :param number: the number of the worker process, from 0; it is added to the port.
        :raises ConfigurationError: there is no such port.
        """
        port: int | None = conf.service.metrics_port
        if not port:
            return None
        if port + number > 65535:
            raise errors.ConfigurationError(reason=f"[service] metrics_port: there is no port {port + number}")
        return cls(conf.service.metrics_host, port + number, Readiness())

    def start(self) -> None:
        """Begin to listen, as any listener does, and log the address."""
        super().start()
        LOG.info("Metrics, /healthz and /readyz are served at %s", address(self.host, self.port))
