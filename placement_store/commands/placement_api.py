"""The sub-command `moorage placement-api`: Placement's HTTP API, in processes of gunicorn."""

import argparse
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from oslo_config import cfg
from prometheus_client import multiprocess

from moorage import logs, metrics, tracing
from moorage.addresses import address
from moorage.cli.arguments import argument
from moorage.cli.command import Configured
from moorage.cli.serving import AUTH_STRATEGY
from moorage.service.process import collect_garbage_seldom
from placement_store.http import wsgi

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class PlacementApi(Configured):
    """Serve Placement's HTTP API until a signal stops it; requests in progress are answered first."""

    arguments = (
        argument("--host", help="Address to listen on (default: [placement_api] host)"),
        argument("--port", type=int, help="Port to listen on (default: [placement_api] port)"),
        AUTH_STRATEGY,
        argument("--database-url", metavar="URL", help="URL of the database (default: [database] connection)"),
        argument("--workers", type=int, help="Number of processes (default: [placement_api] workers)"),
        argument("--threads", type=int, help="Number of threads per process (default: [placement_api] threads)"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the servers.

        :raises ConfigurationError: an option has a value that it cannot have.
        :raises SchemaMismatch: the tables are older than this version, or too new for it.
        """
        with logs.held_back():
            for name in ("host", "port", "auth_strategy", "workers", "threads"):
                self.override("placement_api", name, getattr(parsed_args, name))
            self.override("database", "connection", parsed_args.database_url)
            logs.setup(self.conf, "placement-api")
        # A permanent fault is reported once, before any worker is forked; workers open their own connections.
        with _shared_metrics(self.conf.placement_api.serve_metrics):
            wsgi.prepare_once(self.conf)
            _Servers(self.conf).run()


@contextmanager
def _shared_metrics(are_served: bool) -> Iterator[None]:
    """Let the processes share their metrics in a folder; the process that has created it removes it."""
    if not are_served or metrics.is_shared():
        yield
        return
    folder, maker = tempfile.mkdtemp(prefix="moorage-metrics-"), os.getpid()
    metrics.share_between_processes(folder)
    try:
        yield
    finally:
        # Forked processes run this as well when they end.
        if os.getpid() == maker:
            shutil.rmtree(folder, ignore_errors=True)


def _worker_ended(_arbiter: Arbiter, worker: Any) -> None:
    """Remove the gauges of a process that has ended from the sums; its counters stay."""
    if metrics.is_shared():
        multiprocess.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


class _Lines(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Hands what gunicorn logs to the log of the service, which has a format and a destination."""

    def setup(self, config: Any) -> None:
        """Keep no line from the handlers of the root logger."""
        super().setup(config)
        self.error_log.propagate = True


class _FirstProcess(Arbiter):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's first process; as for every service here, the first signal stops it, the second ends it at once."""

    _is_stopping = False

    def signal(self, sig: int, frame: Any) -> None:
        """Queue a signal: on SIGTERM, gunicorn waits for the requests in progress, on SIGQUIT it does not."""
        if sig in (signal.SIGTERM, signal.SIGINT):
            sig, self._is_stopping = signal.SIGQUIT if self._is_stopping else signal.SIGTERM, True
        super().signal(sig, frame)

    def handle_hup(self) -> None:
        """Continue: no option is read again, and new workers would not start if a file has become invalid."""
        self.log.info("Hang up: %s", self.master_name)


class _Servers(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's processes, each of which builds the application for itself once it is forked."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        #: The options of group ``placement_api``, for the workers.
        self.options = conf.placement_api
        super().__init__()

    def load_config(self) -> None:
        """Translate the configuration to gunicorn's settings."""
        api = self.options
        settings: dict[str, Any] = {
            "bind": address(api.host, api.port),
            # Given by its name: `--help` must not import the server.
            "worker_class": "placement_store.http.buffered_worker.BufferedWorker",
            "workers": api.workers,
            "graceful_timeout": round(api.stop_timeout),
            "proc_name": "moorage-placement-api",
            # The socket of gunicorn's own control tool.
            "control_socket_disable": True,
            "logger_class": _Lines,
            "errorlog": None,
            "child_exit": _worker_ended,
            # Sends the last spans of the process.
            "worker_exit": lambda _arbiter, _worker: tracing.stop(),
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def run(self) -> None:
        """Run the processes until a signal ends them."""
        _FirstProcess(self).run()

    def load(self) -> "WSGIApplication":
        """Build the application of one process; an error here would make gunicorn end all of them."""
        # One more than the configured threads: that for long bodies.
        made = wsgi.make(self._conf, self.options.threads + 1)
        # The modules that are loaded now stay loaded. Without this, the garbage collector would scan them again during
        # requests: a third of the cost of a response with a thousand candidates.
        gc.collect()
        collect_garbage_seldom()
        return made
