"""The command that runs a conductor."""

import argparse

from conductor.service import CellConductor, SuperConductor
from moorage import logs
from moorage.cli.arguments import argument
from moorage.cli.serving import Serving, name_argument


class Conductor(Serving):
    """Run the super conductor, or with --cell a conductor of that cell.

    You can start any number of conductors of each kind. On SIGTERM, a conductor finishes the steps in progress and
    stops. Other conductors continue its operations, or it continues them itself after a restart.
    """

    arguments = (
        argument("--cell", metavar="NAME", help="Cell of this conductor; without it, run a super conductor"),
        name_argument("conductor"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Serve until a signal arrives."""
        cell, name = parsed_args.cell, parsed_args.name
        logs.setup(self.conf, f"conductor.{name}" if cell is None else f"conductor.{cell}.{name}")
        self.serve(
            SuperConductor(self.conf, name) if cell is None else CellConductor(self.conf, name, cell), parsed_args
        )
