"""The command that runs a conductor."""

import argparse
import socket

from conductor.service import CellConductor, SuperConductor
from moorage import logs
from moorage.cli.serving import Serving


class Conductor(Serving):
    """Run the super conductor, or with --cell a conductor of that cell.

    More of each are added by starting them. It stops upon SIGTERM, once the steps under way are done; what is not yet
    done stays on record and is gone on with by another conductor, or by this one when it is started again.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--cell", metavar="NAME", help="the cell; without it, this is a super conductor")
        parser.add_argument(
            "--name", default=socket.gethostname(), help="its own name among its kind; default: the machine's"
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
