"""A worker process of gunicorn in which waitress reads requests and writes responses: slow clients hold no thread.

gunicorn manages the processes: it starts, replaces and stops them. In each of them one event loop reads requests as
they arrive. A thread of the pool gets a request when all of it has arrived, and is free again when the response is
complete.
"""

import logging
import os
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from gunicorn.workers.base import Worker
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.task import ErrorTask, ThreadedTaskDispatcher, WSGITask
from waitress.utilities import Error

from moorage import context
from moorage.service import probes
from moorage.service.http_server import HttpChannel, HttpServer
from placement_store.http import versions
from placement_store.http.application import REQUEST_ID_HEADER, new_request_id, record_unread
from placement_store.http.operations import DEADLINE, too_long
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import UNDEFINED

#: The largest headers, with the request line. Query strings of some hundred uuids must fit.
MAX_HEADER_BYTES = 64 * 1024
#: Seconds for which an idle connection is kept: front ends reuse connections.
_KEEP_ALIVE = 75
#: Seconds for which a worker that stops keeps connections without a request: a request may be on its way already, and
#: closing the connection would lose it. gunicorn's own workers do the same.
_LINGER = 1.0
#: Connections of one process. A connection that waits for its client costs some memory and no thread.
_CONNECTIONS = 2000
#: Threads of one process for probes and metrics: they do not wait until a request has ended.
_PROBE_THREADS = 2
#: A longer body is processed by a thread for all such bodies of the process, one after another. The longest takes a few
#: hundred megabytes of memory and seconds of processor time; ordinary clients send some kilobytes. Arbitrary.
_LONG_BODY_BYTES = 2**20
# A body that is slightly too long is read to its end, so that the client gets the refusal and not a reset connection.
_SPARE_BODY_BYTES = 2**20


def _adjustments(api: Any) -> Adjustments:
    """Translate the options of group ``placement_api`` to the settings of waitress."""
    return Adjustments(
        threads=api.threads,
        max_request_header_size=MAX_HEADER_BYTES,
        max_request_body_size=api.max_body_bytes + _SPARE_BODY_BYTES,
        # A response is complete before it is written, so waiting for the client would save no memory.
        outbuf_high_watermark=2**62,
        channel_timeout=_KEEP_ALIVE,
        cleanup_interval=1,
        connection_limit=_CONNECTIONS,
        asyncore_use_poll=True,
        # oslo.middleware decides which headers of a front end are trusted.
        clear_untrusted_proxy_headers=False,
        ident=None,
    )


class BufferedWorker(Worker):  # type: ignore[misc]  # gunicorn has no types
    """One process: an event loop, and threads for requests that have arrived."""

    _servers: "Sequence[_ListeningServer]" = ()

    def run(self) -> None:
        """Serve until gunicorn stops the worker or has exited; then answer the requests that have begun to arrive."""
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        api = self.app.options
        adjustments, channels = _adjustments(api), dict[int, Any]()
        dispatcher = ThreadedTaskDispatcher()
        dispatcher.set_thread_count(api.threads)
        for_probes, for_long_bodies = ThreadedTaskDispatcher(), ThreadedTaskDispatcher()
        for_probes.set_thread_count(_PROBE_THREADS)
        for_long_bodies.set_thread_count(1)
        self._servers = servers = [
            _ListeningServer(
                *(self.wsgi, api, listener.sock, for_probes, for_long_bodies),
                map=channels,
                dispatcher=dispatcher,
                adj=adjustments,
            )
            for listener in self.sockets
        ]
        # Without gunicorn's first process, nothing would ever stop this one, and it would keep the port occupied.
        while self.alive and os.getppid() == self.ppid:
            self._turn(channels, 1.0)
        for server in servers:
            server.stop_listening()
        until = time.monotonic() + _LINGER
        while any(one.is_busy() or (one.active_channels and time.monotonic() < until) for one in servers):
            for server in servers:
                server.maintenance(time.monotonic())
            self._turn(channels, 0.1)
        for one in (dispatcher, for_probes, for_long_bodies):
            one.shutdown()
        wasyncore.close_all(channels)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at once on gunicorn's signal: wake the event loop, which would notice it only after its timeout."""
        if self.alive:
            super().handle_exit(sig, frame)
            for server in self._servers:
                server.pull_trigger()

    def _turn(self, channels: dict[int, Any], seconds: float) -> None:
        # gunicorn replaces a process that has not notified it for half a minute.
        self.notify()
        wasyncore.loop(timeout=seconds, use_poll=True, map=channels, count=1)


class _ErrorTask(ErrorTask):  # type: ignore[misc]  # waitress has no types
    """Answer with an error document if the request is not HTTP, too long or too slow."""

    def execute(self) -> None:
        fault = self.request.error
        detail, request_id = self._detail(fault), new_request_id()
        with context.bound(request_id=request_id):
            record_unread(fault.code, detail, self.channel.addr[0])
        described = {
            "status": fault.code,
            "title": fault.reason,
            "detail": detail,
            "request_id": request_id,
            "code": UNDEFINED,
        }
        body = msgspec.json.encode({"errors": [described]})
        self.status = f"{fault.code} {fault.reason}"
        self.response_headers += [
            ("Content-Type", "application/json"),
            ("Vary", versions.HEADER.lower()),
            (REQUEST_ID_HEADER, request_id),
        ]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)

    def _detail(self, fault: Error) -> str:
        if fault.code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # The limit of waitress is larger than the configured one.
            return too_long(self.channel.adj.max_request_body_size - _SPARE_BODY_BYTES)
        if fault.body == "Content-Length is invalid":
            return before(f"{fault.body}.", [Phrase.BAD_LENGTH])
        return str(fault.body)


class _ApplicationTask(WSGITask):  # type: ignore[misc]
    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[DEADLINE] = self.request.deadline
        return environ

    def set_close_on_finish(self) -> None:
        # waitress would close the connection after each answer without a body, such as 204.
        asked = self.request.headers.get("CONNECTION", "").lower()
        if self.has_body or self.version != "1.1" or asked == "close":
            super().set_close_on_finish()


class _Channel(HttpChannel):
    task_class = _ApplicationTask
    error_task_class = _ErrorTask


class _ListeningServer(HttpServer):
    channel_class = _Channel

    def __init__(
        self, application: Any, api: Any, listening: Any, for_probes: Any, for_long_bodies: Any, **options: Any
    ) -> None:
        self._for_probes = for_probes
        self._for_long_bodies = for_long_bodies
        self._request_timeout = api.request_timeout
        name = listening.getsockname()
        address = (listening.family, listening.type, listening.proto, name)
        super().__init__(
            application, api.receive_timeout, _sock=listening, bind_socket=False, sockinfo=address, **options
        )

    def add_task(self, task: Any) -> None:
        """Queue a connection, whose next request has arrived, for a thread."""
        request = task.requests[0]
        request.deadline = time.monotonic() + self._request_timeout
        if not self.accepting:
            # The worker stops: the client must not reuse the connection.
            request.headers["CONNECTION"] = "close"
        # A request that is refused before its first line has arrived has no path.
        if getattr(request, "path", None) in probes.PATHS:
            self._for_probes.add_task(task)
        elif request.body_rcv is not None and len(request.body_rcv) > _LONG_BODY_BYTES:
            self._for_long_bodies.add_task(task)
        else:
            super().add_task(task)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self.accepting = False
        self.del_channel()
        self.socket.close()

    def is_busy(self) -> bool:
        """Return whether a request is arriving or in progress, or a response is being written."""
        return any(one.request or one.requests or one.total_outbufs_len for one in self.active_channels.values())
