"""Send requests for destinations to the schedulers, and classify the errors that they answer with.

All requests of builds, moves and unshelvings are sent from here. A request id is derived from the operation and the
number of the request, so that a repeated request is the same request and claims at most once.
"""

from collections.abc import Mapping, Sequence

from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.step_calls import Calling
from conductor.engine.steps import Backoff, Operation
from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import Generation, Move, RequestSpec, Selection

#: The owner of all claims that conductors request.
OWNER = "conductor"

#: Errors after which it is unknown whether the scheduler has claimed, or will claim later.
MAY_HAVE_CLAIMED = (errors.Unavailable, errors.RequestInProgress, errors.InternalError)

#: Seconds between two requests after other claims were faster: the scheduler's view must show these claims first.
CONTENTION = Backoff(first=0.1, longest=2.0)


def selecting(
    scheduler: AcknowledgingClient,
    operation: Operation,
    number: int,
    spec: RequestSpec,
    instance_uuids: tuple[str, ...],
    num_alternates: int,
    *,
    generations: Mapping[str, Generation],
    keep_held: bool,
    move: Move | None = None,
) -> Calling[Sequence[Sequence[Selection]]]:
    """Leave a request to the worker; return the selections of each instance.

    They are in the order of preference, and the first is claimed.

    :param number: distinguishes this request from the other requests of the operation.
    :param generations: the consumer generations that the claims name, by instance.
    :param keep_held: add the claims to the existing allocations of the consumers.
    :raises ClaimContention: other claims were faster each time.
    :raises ConsumerGenerationConflict: a consumer is at another generation than the one named.
    :raises NoValidHost: no host fits.
    :raises MoorageError: any other refusal; see also :data:`MAY_HAVE_CLAIMED`.
    """
    return scheduler.calling(
        SelectDestinations(
            request_id=operation.derived("select", number),
            request_spec=spec,
            instance_uuids=instance_uuids,
            num_alternates=num_alternates,
            owner=OWNER,
            consumer_generations=dict(generations),
            move=move,
            keep_held=keep_held,
        )
    )


def was_refused(fault: Exception) -> bool:
    """Return whether a cell has refused a message, and done nothing."""
    is_refusal = isinstance(fault, errors.CallerError | errors.StaleOrder)
    # CellNotFound: the message was not sent. ReplyTooLarge: it was carried out, and only the answer cannot be sent.
    return is_refusal and not isinstance(fault, errors.CellNotFound | errors.ReplyTooLarge)
