"""The sub-commands `moorage placement`, `moorage claim list` and `moorage claim reconciled`."""

import argparse

from cliff.lister import Lister

from moorage.cli import lists
from moorage.cli.arguments import argument, not_negative
from moorage.cli.command import Configured, ListCommand, ShownAge, Table, shown
from moorage.cli.serving import Serving, name_argument
from moorage.messages import ListClaims, ListReconciled


class ServePlacement(Serving):
    """Run the placement role as a service of its own, apart from the schedulers, until a signal stops it."""

    arguments = (name_argument("service"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Run the service."""
        # Imported here, because the other commands of this module only call the service.
        from moorage import logs
        from placement_store.service import PlacementService

        logs.setup(self.conf, f"placement.{parsed_args.name}")
        self.serve(PlacementService(self.conf, parsed_args.name), parsed_args)


class ClaimList(ListCommand):
    """List claims, the oldest first: the consumer, its compute node, and the host that has accepted the claim.

    The columns for attempt and host have values once the host has accepted the claim. A residue is what an abandoned
    attempt still holds until its host has answered; it is named after the attempt.
    """

    arguments = (
        argument("--unaccepted", action="store_true", help="List only claims that no host has accepted"),
        argument(
            "--older-than", type=not_negative, default=0.0, metavar="SECONDS", help="List only claims older than this"
        ),
        argument("--residues", action="store_true", help="List residues, too"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per consumer."""
        message = ListClaims(
            unaccepted=parsed_args.unaccepted, older_than=parsed_args.older_than, residues=parsed_args.residues
        )
        most = None if parsed_args.sorted_by or parsed_args.marker is not None else parsed_args.limit
        columns = ("consumer", "type", "claim", "node", "owner", "attempt", "host", "generation", "age")
        return columns, [
            shown(
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
            for claim in lists.claims(self.client("placement"), message, most=most)
        ]


class ClaimReconciled(Configured, Lister):
    """List the outcomes of the reconciler for claims that no host has accepted, the newest first.

    The reconciler releases a claim if its owner does not want it. Claims shown as kept or unknown still exist, and the
    reconciler asks again for each of them. Unknown means that the owner could not answer; the reason is shown.
    """

    only_reads = True

    def take_action(self, _parsed_args: argparse.Namespace) -> Table:
        """Return one row per claim."""
        columns = ("consumer", "claim", "owner", "outcome", "reason", "age")
        return columns, [
            shown((one.consumer_uuid, one.claim_id, one.owner, one.outcome, one.reason or None, ShownAge(one.age)))
            for one in self.client("placement").call(ListReconciled())
        ]
