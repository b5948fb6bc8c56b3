"""The sub-command `moorage allocation candidate list`."""

import argparse
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from cliff.lister import Lister

from moorage.cli import group_options
from moorage.cli.arguments import argument
from moorage.cli.command import ShownLines, Table
from moorage.messages import MAX_CANDIDATES, ListAllocationCandidates
from moorage.model import AllocationCandidates, ResourceRequest
from placement_store.commands.placement_command import PlacementCommand

_COLUMNS = ("#", "allocation", "resource provider", "inventory used/capacity", "traits", "groups")


class CandidateList(PlacementCommand, Lister):
    """List allocation candidates for a request, without claiming anything.

    Each candidate lists the resources that would be allocated from each provider. Options before the first --group
    belong to the unsuffixed group, which several providers of a tree may serve together. Options after --group SUFFIX
    belong to a group that one provider must serve.
    """

    only_reads = True
    arguments = (
        partial(group_options.add_request_options, trees_by_name=True),
        argument(
            "--limit",
            type=int,
            default=MAX_CANDIDATES,
            metavar="N",
            help="Maximum number of candidates to list (default: %(default)s)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return a row for each provider of each candidate, the candidates numbered from 1."""
        groups = group_options.groups(parsed_args)
        request = ResourceRequest(
            groups={suffix: self.in_named_tree(group) for suffix, group in groups.items()},
            **group_options.between(parsed_args),
        )
        found = self.placement.call(ListAllocationCandidates(request=request, limit=parsed_args.limit))
        return _COLUMNS, list(_rows(found))


def _rows(found: AllocationCandidates) -> Iterator[tuple[Any, ...]]:
    for number, candidate in enumerate(found.allocation_requests, start=1):
        for uuid, part in candidate.allocations.items():
            summary = found.provider_summaries[uuid]
            yield (
                number,
                _joined(f"{name}={amount}" for name, amount in part.resources.items()),
                uuid,
                _joined(f"{name}={summary.used.get(name, 0)}/{int(size)}" for name, size in summary.capacity.items()),
                _joined(summary.traits),
                # Without the unsuffixed group.
                _joined(suffix for suffix, uuids in candidate.mappings.items() if uuid in uuids and suffix),
            )


def _joined(texts: Iterable[str]) -> ShownLines:
    """Show texts in one line of a table, joined by commas."""
    shown = list(texts)
    return ShownLines(shown, [",".join(shown)])
