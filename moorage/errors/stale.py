"""Errors because of stale data or concurrent requests: read and decide again, or repeat the request later."""

from moorage.errors.basis import MoorageError


class StaleView(MoorageError, code="moorage.stale"):
    """The state that the caller relies on has changed in the meantime."""


class ConsumerGenerationConflict(StaleView, code="moorage.consumer_generation_conflict"):
    """The consumer {consumer_uuid} is at generation {found}, not at {named}.

    A generation of null stands for a consumer that does not exist.
    """

    consumer_uuid: str
    named: int | None
    found: int | None

    def __str__(self) -> str:
        match self.data:
            case {"found": None, "named": named, "consumer_uuid": uuid}:
                return f"The consumer {uuid} does not exist, and so it is not at generation {named}."
            case {"found": found, "named": None, "consumer_uuid": uuid}:
                return f"The consumer {uuid} exists already, at generation {found}."
        return super().__str__()


class ProviderGenerationConflict(StaleView, code="moorage.provider_generation_conflict"):
    """The resource provider {provider_uuid} is at generation {found}, not at {named}."""

    provider_uuid: str
    named: int
    found: int


class StaleOrder(StaleView, code="moorage.stale_order"):
    """The order about instance {instance_uuid} is out of date, and nothing was changed: {reason}.

    Another order has been given or carried out since then, or this order was refused and its caller informed. Check the
    instance, and order again what is still wanted, with a new request id.
    """

    instance_uuid: str
    reason: str


class ClaimReleased(StaleView, code="moorage.claim_released"):
    """The claim {claim_id} of consumer {consumer_uuid} has been released or replaced."""

    consumer_uuid: str
    claim_id: str


class TryAgain(MoorageError, code="moorage.try_again"):
    """The request could not be served just now; the same may succeed later."""


class ClaimContention(TryAgain, code="moorage.claim_contention"):
    """Other claims were faster {tries} times; ask again with a new request id."""

    tries: int


class RequestInProgress(TryAgain, code="moorage.request_in_progress"):
    """The request {request_id} is still in progress; repeat it with the same id."""

    request_id: str
