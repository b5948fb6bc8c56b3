"""The command that runs a conductor."""

import argparse
import socket

from conductor.service import CellConductor, SuperConductor
from moorage import logs
from moorage.cli.serving import Serving


class Conductor(Serving):
    """Run the super conductor, or with --cell a conductor of that cell.

    You can start any number of conductors of each kind. On SIGTERM, a conductor finishes the steps in progress and
    stops. Other conductors continue its operations, or it continues them itself after a restart.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--cell", metavar="NAME", help="Cell of this conductor; without it, run a super conductor")
        parser.add_argument(
            "--name",
            default=socket.gethostname(),
            help="Name of this conductor, unique among its kind (default: the host name)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve until a signal arrives."""
        cell, name = parsed_args.cell, parsed_args.name
        logs.setup(self.conf, f"conductor.{name}" if cell is None else f"conductor.{cell}.{name}")
        self.serve(
            SuperConductor(self.conf, name) if cell is None else CellConductor(self.conf, name, cell), parsed_args
        )
        return 0
