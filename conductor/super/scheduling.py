"""Classify the errors that schedulers and cells answer with to the steps of builds, moves and unshelvings."""

from conductor.engine.steps import Backoff
from moorage import errors

#: The owner of all claims that conductors request.
OWNER = "conductor"

#: Errors after which it is unknown whether the scheduler has claimed, or will claim later.
MAY_HAVE_CLAIMED = (errors.Unavailable, errors.RequestInProgress, errors.InternalError)

#: Seconds between two requests after other claims were faster: the scheduler's view must show these claims first.
CONTENTION = Backoff(first=0.1, longest=2.0)


def was_refused(fault: Exception) -> bool:
    """Return whether a cell has refused a message, and done nothing."""
    is_refusal = isinstance(fault, errors.CallerError | errors.StaleOrder)
    # CellNotFound: the message was not sent. ReplyTooLarge: it was carried out, and only the answer cannot be sent.
    return is_refusal and not isinstance(fault, errors.CellNotFound | errors.ReplyTooLarge)
