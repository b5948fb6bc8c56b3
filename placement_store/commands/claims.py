"""The sub-commands `moorage placement`, `moorage claim list` and `moorage claim reconciled`."""

import argparse
import socket
from typing import Any

from cliff.command import Command
from cliff.lister import Lister

from moorage.cli import lists
from moorage.cli.command import Configured, ListCommand, ShownAge, Table, argument, shown
from moorage.cli.serving import Serving
from moorage.messages import ListClaims, ListReconciled
from moorage.model.inspection import ClaimState

_COLUMNS = ("consumer", "type", "claim", "node", "owner", "attempt", "host", "generation", "age")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds is not negative")
    return seconds


class ServePlacement(Serving, Command):
    """Run the placement role in a process of its own until a signal ends it."""

    arguments = (
        argument("--name", default=socket.gethostname(), help="its unique name; default: the name of the machine"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the service."""
        # Here, because the other commands of this module call it.
        from moorage import logs
        from placement_store.service import PlacementService

        logs.setup(self.conf, f"placement.{parsed_args.name}")
        self.serve(PlacementService(self.conf, parsed_args.name), parsed_args)


class ClaimList(ListCommand):
    """List the consumers that a claim places on a node, the oldest claim first.

    The columns attempt and host are empty until the host has accepted the claim. A residue keeps allocations of an
    abandoned attempt until its host has reported the guest gone; its uuid is that of the attempt.
    """

    arguments = (
        argument("--unaccepted", action="store_true", help="only claims that no host has accepted"),
        argument("--older-than", type=_seconds, default=0.0, metavar="SECONDS", help="only those at least this old"),
        argument("--residues", action="store_true", help="also residues"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per consumer."""
        message = ListClaims(
            unaccepted=parsed_args.unaccepted, older_than=parsed_args.older_than, residues=parsed_args.residues
        )
        return _COLUMNS, [_row(claim) for claim in lists.claims(self.client("placement"), message)]


class ClaimReconciled(Configured, Lister):
    """Show the reconciler's findings about claims that no host has accepted, the newest first.

    A claim is released if its owner does not want it. One shown as kept or unknown still stands, and its owner is
    queried again later; unknown means that the owner could not answer, for the reason given.
    """

    def take_action(self, _parsed_args: argparse.Namespace) -> Table:
        """Return one row per claim."""
        columns = ("consumer", "claim", "owner", "outcome", "reason", "age")
        return columns, [
            shown(
                (
                    action.consumer_uuid,
                    action.claim_id,
                    action.owner,
                    action.outcome,
                    action.reason or None,
                    ShownAge(action.age),
                )
            )
            for action in self.client("placement").call(ListReconciled())
        ]


def _row(claim: ClaimState) -> tuple[Any, ...]:
    return shown(
        (
            claim.consumer_uuid,
            claim.consumer_type,
            claim.claim_id,
            claim.node or claim.root_provider_uuid,
            claim.owner,
            claim.accepted_by,
            claim.accepted_host,
            claim.generation,
            ShownAge(claim.age),
        )
    )
