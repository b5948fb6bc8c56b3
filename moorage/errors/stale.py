"""Errors because of stale data or concurrent requests: read and decide again, or repeat the request later."""

from moorage.errors.basis import MoorageError


class StaleView(MoorageError):
    """The state that the caller relies on has changed in the meantime."""

    code = "moorage.stale"


class ConsumerGenerationConflict(StaleView):
    """The consumer {consumer_uuid} is at generation {found}, not at {named}.

    A generation of null stands for a consumer that does not exist.
    """

    code = "moorage.consumer_generation_conflict"
    consumer_uuid: str
    named: int | None
    found: int | None


class ProviderGenerationConflict(StaleView):
    """The resource provider {provider_uuid} is at generation {found}, not at {named}."""

    code = "moorage.provider_generation_conflict"
    provider_uuid: str
    named: int
    found: int


class StaleOrder(StaleView):
    """The order about instance {instance_uuid} is out of date, and nothing was changed: {reason}.

    Another order has been given or carried out since then, or this order was refused and its caller informed. Check the
    instance, and order again what is still wanted, with a new request id.
    """

    code = "moorage.stale_order"
    instance_uuid: str
    reason: str


class ClaimReleased(StaleView):
    """The claim {claim_id} of consumer {consumer_uuid} has been released or replaced."""

    code = "moorage.claim_released"
    consumer_uuid: str
    claim_id: str


class TryAgain(MoorageError):
    """The request could not be served just now; the same may succeed later."""

    code = "moorage.try_again"


class ClaimContention(TryAgain):
    """Other claims were faster {tries} times; ask again with a new request id."""

    code = "moorage.claim_contention"
    tries: int


class RequestInProgress(TryAgain):
    """The request {request_id} is still in progress; repeat it with the same id."""

    code = "moorage.request_in_progress"
    request_id: str
