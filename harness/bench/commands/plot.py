"""The command that draws the results of the others."""

import argparse
from pathlib import Path

from harness.bench import plot
from moorage.cli.arguments import argument
from moorage.cli.command import Configured


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError("must end in .png")
    return path


class BenchPlot(Configured):
    """Draw rate and latency of several runs; each is a file with the output of a benchmark with `-f json`.

    The horizontal axis is the figure in which the runs differ. If they differ in several figures, there is a line for
    each combination of the others. For repeated runs, the medians are drawn.
    """

    arguments = (
        argument("runs", metavar="RUN.json", nargs="+", type=Path, help="Output of a run"),
        argument("--output", metavar="FILE.png", type=_png, required=True, help="Image file to write"),
        argument(
            "--by",
            choices=plot.AXES,
            help="Figure for the horizontal axis (default: the first of these in which the runs differ)",
        ),
    )

    def take_action(self, arguments: argparse.Namespace) -> None:
        """Draw the picture."""
        plot.draw(plot.picture([plot.read(file) for file in arguments.runs], arguments.by), arguments.output)
