"""The payloads of the steps that place an existing instance: recorded with a step before it is done.

Their field names are stored.
"""

from typing import Any

from msgspec import field, structs

from moorage.model import Allocations, Generation, Move, RequestSpec, Selection, Value


class SentRequest(Value, frozen=True, kw_only=True):
    """One request to the scheduler that may have been sent: the fields that differ between an operation's requests."""

    number: int
    generation: Generation | None
    keep_held: bool = False


class ScheduleStep(Value, frozen=True, kw_only=True):
    """The payload of steps `read`, `select` and `recover`: the request and the tries so far."""

    request_spec: RequestSpec
    num_alternates: int
    move: Move | None = None
    current: SentRequest = SentRequest(number=0, generation=None)
    #: The number of requests that failed because of faster claims, and because of other writers of the consumer.
    lost: int = 0
    conflicts: int = 0
    #: Earlier requests that may have been carried out, or may still be.
    doubtful: tuple[SentRequest, ...] = ()
    #: The foreign allocations of a moving instance, at the generation of the current request; older records have none.
    foreign: Allocations = field(default_factory=dict)
    #: The number of the order of this operation; null in the records of earlier versions.
    order_number: int | None = None


class HandOverSelections(Value, frozen=True, kw_only=True):
    """The payload of step `hand_over`: the request, and the selections that answer it; the first is claimed."""

    request_spec: RequestSpec
    move: Move | None = None
    selections: tuple[Selection, ...]
    order_number: int | None = None


class NotScheduled(Value, frozen=True, kw_only=True):
    """The payload of steps `fence` and `cancel`: the reason why nothing is claimed, certain only after `fence`."""

    reason: str
    explanation: dict[str, Any] | None = None
    #: The instance has been deleted.
    deleted: bool = False
    #: The state of the scheduling, for `fence`: its doubtful requests may still claim.
    asking: ScheduleStep | None = None
    order_number: int | None = None


def all_doubted(payload: ScheduleStep) -> ScheduleStep:
    """Return a payload in which the current request is doubtful too; before the first request there is none."""
    if payload.current.number == 0:
        return payload
    return structs.replace(payload, doubtful=(*payload.doubtful, payload.current))
