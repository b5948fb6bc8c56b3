"""The command that draws the results of the others."""

import argparse
from pathlib import Path

from harness.bench import plot
from moorage.cli.command import Configured, argument


def _png(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() != ".png":
        raise argparse.ArgumentTypeError("must end in .png")
    return path


class BenchPlot(Configured):
    """Draw rate and latency of several runs, each a file of what another benchmark has printed with `-f json`.

    They are drawn against the figure in which the runs differ; where they differ in more, there is a line for each
    value of the others. Of repeated runs the medians are drawn.
    """

    arguments = (
        argument("runs", metavar="RUN.json", nargs="+", type=Path, help="the figures of a run"),
        argument("--output", metavar="FILE.png", type=_png, required=True, help="the picture"),
        argument(
            "--by",
            choices=plot.AXES,
            help="the figure to draw against; default: the first of these in which the runs differ",
        ),
    )

    def take_action(self, arguments: argparse.Namespace) -> None:
        """Draw the picture."""
        plot.draw(plot.picture(plot.read(arguments.runs), arguments.by), arguments.output)
