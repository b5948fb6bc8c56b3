"""Build the answer to ``select_destinations`` from a plan and its claims."""

from collections.abc import Sequence

from msgspec import structs

from moorage.messages import Claimed
from moorage.model import Explanation, Selection, ServerGroup
from scheduler.decide.choosing import HostChoice
from scheduler.decide.planner import DestinationPlan
from scheduler.view.snapshot import Snapshot

Selections = list[list[Selection]]


def selections_of(plan: DestinationPlan, claimed: Sequence[Claimed], group: ServerGroup | None) -> Selections:
    """Return the selections of a claimed plan: for each instance its host, and then the alternates."""
    # Many instances share their alternates: build each selection once.
    selections: dict[HostChoice, Selection] = {}

    def selection(choice: HostChoice) -> Selection:
        if choice not in selections:
            selections[choice] = _selection(plan.view, choice, group)
        return selections[choice]

    explanations: Sequence[Explanation | None] = plan.explanations or [None] * len(plan.chosen)
    return [
        [
            structs.replace(
                selection(chosen),
                claim_id=claim.claim_id,
                consumer_generation=claim.consumer_generation,
                explanation=explanation,
            ),
            *map(selection, alternates),
        ]
        for chosen, alternates, claim, explanation in zip(
            plan.chosen, plan.alternates, claimed, explanations, strict=True
        )
    ]


def _selection(view: Snapshot, choice: HostChoice, group: ServerGroup | None) -> Selection:
    host, tree, request = view.hosts[choice.row], view.trees[choice.row], choice.allocation_request
    pools = {member.uuid for member in tree.sharing} if tree else set()
    return Selection(
        service_host=host.service_host,
        nodename=host.nodename,
        compute_node_uuid=host.compute_node_uuid,
        cell_uuid=host.cell_uuid,
        agent=host.agent,
        availability_zone=host.availability_zone,
        allocation_request=request,
        shared_providers=tuple(sorted(pools & request.allocations.keys())),
        limits=view.limits(choice.row, {name for part in request.allocations.values() for name in part.resources}),
        weight=choice.weight,
        group=None if group is None else group.uuid,
    )
