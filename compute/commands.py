"""The sub-command that runs a compute agent."""

import argparse
from collections.abc import Sequence

import yaml

from compute.service import ComputeService
from compute.tree_changes import TreeChange
from moorage import logs
from moorage.cli.arguments import argument
from moorage.cli.serving import Serving
from moorage.messages.wire import encode


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts")
    return int(text)


class Compute(Serving):
    """Run a compute agent: report its hosts, and carry out the orders of their cell conductor.

    Each agent of a cell needs a unique name. On SIGTERM it stops; its guests keep running.
    """

    arguments = (
        argument("--cell", required=True, metavar="NAME", help="Cell of its hosts"),
        argument("--agent", metavar="NAME", help="Name of the agent (default: [compute] agent)"),
        argument("--fake-hosts", type=_count, metavar="N", help="Use the fake driver with N hosts; nothing is real"),
        argument(
            "--wanted-reshapes",
            action="store_true",
            help="Print the reshapes that the driver needs on its hosts, as a file for `moorage resource provider "
            "reshape`, and exit; stop the agent first",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Serve until a signal comes."""
        self.override("compute", "agent", parsed_args.agent)
        if parsed_args.fake_hosts is not None:
            self.override("compute", "driver", "fake")
            self.override("fake_driver", "hosts", parsed_args.fake_hosts, "--fake-hosts")
        compute = ComputeService(self.conf, parsed_args.cell)
        if parsed_args.wanted_reshapes:
            self.app.stdout.write(_reshape_file(compute.wanted_reshapes()))
            return 0
        logs.setup(self.conf, f"compute.{self.conf.compute.agent}")
        self.serve(compute, parsed_args)
        return 0


def _reshape_file(changes: Sequence[TreeChange]) -> str:
    """Return the reshapes that a driver wants, as a file for `moorage resource provider reshape`.

    The file has an entry for each host, under a comment with the host's name.
    """
    if not changes:
        return "# The driver wants nothing reshaped.\n"
    lines = ["reshape:\n"]
    for change in changes:
        entry = {
            "instructions": encode(change.instructions),
            "providers": encode(change.children),
            "allocations": encode(change.dealt),
        }
        filled = {name: value for name, value in entry.items() if value}
        lines += [f"# {change.host.service_host}\n", yaml.safe_dump([filled], sort_keys=False)]
    return "".join(lines)
