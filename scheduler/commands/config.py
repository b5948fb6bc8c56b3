"""`moorage scheduler config show`: ask each running scheduler for its policy, and compare them."""

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from cliff.lister import Lister

from moorage.cli.arguments import argument, positive
from moorage.cli.command import Configured, ShownLines, ShownValue, Table
from moorage.messages import ShowPolicy
from moorage.model.inspection import PluginUse, PolicyState
from scheduler.commands import running

LOG = logging.getLogger(__name__)

_COLUMNS = (
    *("scheduler", "policy", "since", "filters", "weighers", "request_filters", "host_subset_size", "broken_plugin"),
    *("broken", "needs_restart", "refused_reload"),
)
#: Fields that a table shows once for all schedulers with the same value.
_LONG = frozenset({"filters", "weighers", "request_filters"})
#: Fields in which two policies may differ.
_PARTS = ("filters", "weighers", "request_filters", "host_subset_size", "broken_plugin")


class SchedulerConfigShow(Configured, Lister):
    """Show the policy of each running scheduler, its age, and whether the last reload was refused.

    Schedulers with the same fingerprint under `policy` have the same policy. The exit status is 1 if the policies
    differ or if a scheduler does not answer. A table has a column per scheduler; other formats, and a table with -c,
    have a row per scheduler.
    """

    only_reads = True

    _wrong: Sequence[str] = ()

    arguments = (
        argument("--scheduler", metavar="NAME", help="Show only this scheduler"),
        argument(
            "--timeout",
            type=positive,
            default=5.0,
            metavar="SECONDS",
            help="Time to wait for the answer of each scheduler (default: %(default)g)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Ask all schedulers, in parallel, and return a row for each one that answers."""
        answers = running.ask(self.calling, self.clients(parsed_args.timeout), ShowPolicy(), parsed_args.scheduler)
        policies = {name: answer for name, answer in answers.items() if isinstance(answer, PolicyState)}
        silent = [
            f"Scheduler {name} does not answer: {answer}" for name, answer in answers.items() if name not in policies
        ]
        self._wrong = [*silent, *differences(policies)]
        return _COLUMNS, [_row(name, policy) for name, policy in policies.items()]

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show the policies; the exit status is 1 if they differ, or if a scheduler does not answer."""
        status = super().run(parsed_args)
        for sentence in self._wrong:
            LOG.error(sentence)
        return status or int(bool(self._wrong))

    def produce_output(
        self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Sequence[Any]]
    ) -> int:
        """Show a table with a column for each scheduler: no terminal is wide enough for a row for each."""
        rows: list[Sequence[Any]] = list(data)
        if rows and parsed_args.formatter == "table" and not (parsed_args.columns or parsed_args.sort_columns):
            column_names, rows = _side_by_side(column_names, rows)
        return super().produce_output(parsed_args, column_names, rows)


def differences(policies: Mapping[str, PolicyState]) -> list[str]:
    """Return a sentence for each scheduler whose policy differs from that of most others."""
    if len({policy.fingerprint for policy in policies.values()}) < 2:
        return []
    [(most, _)] = Counter(policy.fingerprint for policy in policies.values()).most_common(1)
    usual_name, usual = next((name, policy) for name, policy in policies.items() if policy.fingerprint == most)
    sentences = []
    for name, policy in policies.items():
        if policy.fingerprint == most:
            continue
        parts = [part for part in _PARTS if getattr(policy, part) != getattr(usual, part)]
        sentences.append(
            f"Scheduler {name} differs from {usual_name} in {', '.join(parts) or 'a value that is secret'}"
        )
    return sentences


def _side_by_side(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """Transpose a table: a column for each scheduler, a row for each field."""
    columns = [row[0] for row in rows]
    turned: list[Sequence[Any]] = []
    for name, *values in list(zip(names, *rows, strict=True))[1:]:
        first: dict[str, str] = {}
        # Replace a long value that an earlier column already has by a reference to that column.
        if name in _LONG:
            for column, value in zip(columns, values, strict=True):
                first.setdefault(value.human_readable(), column)
            values = [
                value if first[value.human_readable()] == column else ShownValue(f"as {first[value.human_readable()]}")
                for column, value in zip(columns, values, strict=True)
            ]
        turned.append((name, *values))
    return ("Field", *columns), turned


def _row(name: str, policy: PolicyState) -> tuple[Any, ...]:
    refused = policy.refused
    return (
        name,
        policy.fingerprint,
        ShownLines(round(policy.age, 1), [f"{policy.age:,.0f} s"]),
        *(_plugins(each) for each in (policy.filters, policy.weighers, policy.request_filters)),
        policy.host_subset_size,
        policy.broken_plugin,
        ShownLines(policy.broken, [f"{plugin}: {count:,}" for plugin, count in policy.broken.items()]),
        ShownLines(list(policy.needs_restart), list(policy.needs_restart)),
        ShownValue(None)
        if refused is None
        else ShownLines(msgspec.to_builtins(refused), [f"{refused.age:,.0f} s ago: {refused.reason}"]),
    )


def _plugins(plugins: Iterable[PluginUse]) -> ShownLines:
    plugins = list(plugins)
    return ShownLines([msgspec.to_builtins(each) for each in plugins], [_plugin(each) for each in plugins])


def _plugin(plugin: PluginUse) -> str:
    """Format a plug-in: its name and multiplier, and below them its options as in a configuration file."""
    multiplier = "" if plugin.multiplier is None else f" x {plugin.multiplier:,.10g}"
    return "\n".join(
        [f"{plugin.name}{multiplier}", *(f"  {name} = {_written(value)}" for name, value in plugin.settings.items())]
    )


def _written(value: Any) -> str:
    """Format the value of an option as in a configuration file; strings in lists have no quotes."""
    if isinstance(value, bool | None):
        return "" if value is None else str(value).lower()
    if isinstance(value, list):
        return ", ".join(_written(each) for each in value)
    return str(value)
