"""Plots of the results of several runs: latency and rate against the figure in which the runs differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.arguments import extra
from moorage import errors

#: The figures that results may be drawn against.
AXES = ("hosts", "clients", "occupancy", "per_request", "per_order", "schedulers", "groups", "nested")
_RATES = ("claims_per_s", "builds_per_s", "decisions_per_s", "calls_per_s")
_LATENCIES = ("p50_ms", "p99_ms")
#: If the largest value on the axis is at least this multiple of the smallest, the axis is logarithmic.
_WIDE = 10

#: The figures of one run, as `moorage bench -f json` prints them.
Run = Mapping[str, Any]


@dataclass(frozen=True)
class PlottedLine:
    """The results of runs that differ only in the figure on the axis, in its order; medians of repeated runs."""

    #: The values of all other figures in which the runs differ.
    label: str
    at: Sequence[float]
    values: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Picture:
    """The lines of all runs, the figure on the axis, and the name of the rate."""

    axis: str
    rate: str
    lines: Sequence[PlottedLine]


def read(file: Path) -> Run:
    """Return the run whose figures are in a file.

    :raises ConfigurationError: the file cannot be read, or has no such figures.
    """
    try:
        run = json.loads(file.read_text())
    except OSError as fault:
        raise errors.ConfigurationError(reason=f"{file} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise errors.ConfigurationError(reason=f"{file} is no JSON: {fault}") from fault
    if not isinstance(run, dict) or not {*_LATENCIES} <= run.keys() or run.keys().isdisjoint(_RATES):
        reason = f"{file} is no result of `moorage bench select`, `build`, `decide`, `claims` or `echo` with -f json"
        raise errors.ConfigurationError(reason=reason)
    return run


def picture(runs: Sequence[Run], axis: str | None = None) -> Picture:
    """Return the lines of runs.

    :param axis: the figure to draw against; by default the first one of :data:`AXES` in which the runs differ.
    :raises ConfigurationError: the runs are of different kinds, or do not differ in such a figure.
    """
    kinds = sorted({_rate(run) for run in runs})
    if len(kinds) > 1:
        raise errors.ConfigurationError(reason=f"the runs measure different things: {', '.join(kinds)}")
    differing = [name for name in AXES if len({run.get(name) for run in runs}) > 1]
    if axis is None:
        if not differing:
            reason = f"the runs differ in none of {', '.join(AXES)}: there is nothing to draw against"
            raise errors.ConfigurationError(reason=reason)
        axis = differing[0]
    if any(not isinstance(run.get(axis), int | float) for run in runs):
        raise errors.ConfigurationError(reason=f"a run has no number of {axis} to draw against")
    others = [name for name in differing if name != axis]
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        label = ", ".join(f"{name.replace('_', ' ')} {run.get(name)}" for name in others)
        by_label.setdefault(label, []).append(run)
    figures = (kinds[0], *_LATENCIES)
    return Picture(axis, kinds[0], [_line(label, alike, axis, figures) for label, alike in by_label.items()])


def draw(shown: Picture, output: Path) -> None:
    """Draw the rate and the latency beside each other into a file.

    :raises ConfigurationError: the package for drawing is not installed, or the file cannot be written.
    """
    figure = extra("matplotlib.figure", "moorage bench plot", "bench").Figure(figsize=(12, 5), layout="constrained")
    rate, latency = figure.subplots(1, 2)
    for line in shown.lines:
        [drawn] = rate.plot(line.at, line.values[shown.rate], marker="o", label=line.label)
        for name, style in zip(_LATENCIES, ("-", "--"), strict=True):
            label = f"{line.label} {name.removesuffix('_ms')}".strip()
            latency.plot(line.at, line.values[name], style, marker="o", color=drawn.get_color(), label=label)
    places = sorted({place for line in shown.lines for place in line.at})
    for part, unit in ((rate, shown.rate.replace("_per_s", " a second")), (latency, "milliseconds")):
        part.set_xlabel(shown.axis.replace("_", " "))
        part.set_ylabel(unit)
        part.set_ylim(0, 1.05 * part.get_ylim()[1])
        if places[0] > 0 and places[-1] / places[0] >= _WIDE:
            part.set_xscale("log")
        part.set_xticks(places, labels=[f"{place:,}" for place in places])
        part.grid(alpha=0.3)
    latency.legend()
    if len(shown.lines) > 1:
        rate.legend()
    try:
        figure.savefig(output, format="png")
    except OSError as fault:
        raise errors.ConfigurationError(reason=f"{output} cannot be written: {fault.strerror}") from fault


def _rate(run: Run) -> str:
    return next(name for name in _RATES if name in run)


def _line(label: str, runs: Sequence[Run], axis: str, figures: Sequence[str]) -> PlottedLine:
    at = sorted({run[axis] for run in runs})
    values = {name: [median(run[name] for run in runs if run[axis] == value) for value in at] for name in figures}
    return PlottedLine(label, at, values)
