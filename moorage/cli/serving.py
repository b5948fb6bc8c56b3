"""The base of the commands that run a service until a signal ends it."""

import argparse
import socket
from collections.abc import Sequence

from moorage import errors, logs, tracing
from moorage.cli.arguments import Argument, argument
from moorage.cli.command import Configured
from moorage.service import process

#: The argument of the commands that serve HTTP.
AUTH_STRATEGY = argument(
    "--auth-strategy",
    choices=["keystone", "noauth2"],
    help="How clients are authenticated (default: [placement_api] auth_strategy)",
)


def name_argument(service: str) -> Argument:
    """Declare `--name`, the name of a service; ``service`` says of what kind it is."""
    text = f"Name of this {service}, unique among its kind (default: the host name)"
    return argument("--name", default=socket.gethostname(), help=text)


def require_broker(transport_url: str | None) -> None:
    """Refuse the URL of a bus within one process, for a service that is a process of its own.

    :raises ConfigurationError: it is one.
    """
    if transport_url is not None and transport_url.startswith("inproc:"):
        raise errors.ConfigurationError(
            reason="transport_url: inproc:// does not leave its process, so nothing could reach the service. "
            "Set the URL of a RabbitMQ broker; `moorage demo` runs a whole cloud in one process"
        )


class Serving(Configured):
    """A command that runs a service."""

    arguments: Sequence[Argument] = (
        argument(
            "--metrics-port",
            type=int,
            metavar="PORT",
            help="Port for /metrics, /healthz and /readyz (default: [service] metrics_port); 0 disables them",
        ),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the service; what is deprecated in its configuration goes to its log, which is set up meanwhile."""
        with logs.held_back():
            return super().run(parsed_args)

    def serve(
        self, service: process.Service, parsed_args: argparse.Namespace, *, signals: int | None = None, number: int = 0
    ) -> None:
        """Run a service until a signal ends it.

        :param signals: the descriptor from which a worker process reads its signals.
        :param number: the number of a worker process, from 0.
        :raises ConfigurationError: an option has an invalid value, or no other process could reach the service.
        """
        from moorage.service.listener import Listener  # here, because it imports an HTTP server

        self.override("service", "metrics_port", parsed_args.metrics_port)
        tracing.configure(self.conf, logs.service_name(self.conf) or "service")
        try:
            require_broker(self.conf.transport_url)
            process.run(service, signals=signals, listener=Listener.configured(self.conf, number))
        finally:
            tracing.stop()
