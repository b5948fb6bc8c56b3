"""The sub-command `moorage dashboard`."""

import argparse
from collections.abc import Sequence

from moorage import logs
from moorage.cli.arguments import Argument, argument
from moorage.cli.serving import AUTH_STRATEGY, Serving


class Dashboard(Serving):
    """Serve a read-only web page of the cloud: hosts, requests, operations and audits.

    The configuration groups [placement_api] and [oslo_policy] control access, as for `moorage placement-api`.
    """

    arguments: Sequence[Argument] = (
        argument("--host", help="Address to listen on (default: [dashboard] host)"),
        argument("--port", type=int, help="Port to listen on (default: [dashboard] port)"),
        AUTH_STRATEGY,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal arrives.

        :raises ConfigurationError: an option has an invalid value.
        """
        from dashboard.service import DashboardService  # here, because it brings the whole host view

        groups = {"host": "dashboard", "port": "dashboard", "auth_strategy": "placement_api"}
        for name, group in groups.items():
            self.override(group, name, getattr(parsed_args, name))
        logs.setup(self.conf, "dashboard")
        self.serve(DashboardService(self.conf), parsed_args)
