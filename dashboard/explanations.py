"""Explanations in the form that the page draws: why a request was refused, or where it would go."""

from typing import Any

import msgspec

from moorage.cli.lists import MessageClient
from moorage.messages import ExplainRequest, ShowInstance
from moorage.model import Explanation, Flavor, Instance, RequestSpec
from moorage.model.states import UNDER_WAY
from scheduler.commands.explain import explained_hosts, present_request, recorded_request


def of_instance(
    conductor: MessageClient, scheduler: MessageClient, uuid: str, hosts: tuple[str, ...], *, now: bool
) -> dict[str, Any]:
    """Return the recorded reason why an instance was refused, or what the scheduler would decide on its request now.

    :param hosts: hosts to explain; if there are any, or with ``now``, the scheduler is asked.
    :raises InstanceNotFound: no instance has this uuid.
    :raises InvalidState: the instance requests nothing any more, or its request is not on record.
    :raises MoorageError: the super conductor or the scheduler does not answer, or refuses the question.
    """
    instance = conductor.call(ShowInstance(instance_uuid=uuid, with_request=True))
    if instance.explanation is not None and not (hosts or now):
        return {"asked": "when it was refused", **described(instance.explanation)}
    return {"asked": "now", **described(scheduler.call(_question(instance, hosts)))}


def _question(instance: Instance, hosts: tuple[str, ...]) -> ExplainRequest:
    return ExplainRequest(
        request_spec=present_request(instance, recorded_request(instance)),
        instance_uuid=instance.uuid,
        under_way=instance.state in UNDER_WAY,
        hosts=explained_hosts(instance, hosts),
    )


def of_size(scheduler: MessageClient, flavor: Flavor, hosts: tuple[str, ...]) -> dict[str, Any]:
    """Return what the scheduler would decide on a new instance of a size.

    :raises MoorageError: the scheduler does not answer, or refuses the question.
    """
    spec = RequestSpec(project_id="dashboard", user_id="dashboard", flavor=flavor)
    return {"asked": "now", **described(scheduler.call(ExplainRequest(request_spec=spec, hosts=hosts)))}


def described(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation with the hosts left after each filter, and the reasons in words."""
    return {
        "summary": explanation.summary(),
        "chosen": explanation.chosen,
        "hosts": explanation.hosts,
        "feasible": explanation.feasible,
        "instances": explanation.instances,
        "placed": explanation.placed,
        "filters": [
            {
                "name": each.name,
                "hosts": each.hosts,
                "left": each.hosts - each.removed,
                "reasons": [{"hosts": part.hosts, "words": part.words} for part in each.parts()],
            }
            for each in explanation.filters
        ],
        "nearest_misses": msgspec.to_builtins(explanation.nearest_misses),
        "nearest_hosts": explanation.nearest_hosts,
        "named_hosts": explanation.named_hosts,
        "lost_races": explanation.lost_races,
        "skipped_plugins": explanation.skipped_plugins,
        "top_hosts": [
            {
                "host": each.host,
                "cell_uuid": each.cell_uuid,
                "rank": each.rank,
                "weight": each.weight,
                "scores": [{"weigher": score.weigher, "counts": score.counts} for score in each.scores if score.counts],
            }
            for each in explanation.top_hosts
        ],
    }
