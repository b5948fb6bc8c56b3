"""Others were faster: the same request, later."""

from moorage.errors.basis import MoorageError


class TryAgain(MoorageError):
    """The request could not be served just now; the same may succeed later."""

    code = "moorage.try_again"


class ClaimContention(TryAgain):
    """Other claims were faster {tries} times; ask again with a new request id."""

    code = "moorage.claim_contention"
    tries: int


class RequestInProgress(TryAgain):
    """The request {request_id} is still being worked on; repeat it with the same id."""

    code = "moorage.request_in_progress"
    request_id: str
