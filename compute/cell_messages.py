"""Builders of an agent's messages about an attempt, with request ids derived from the attempt's id."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from moorage import ids
from moorage.batches import in_parts
from moorage.messages import AcceptInCell, AttemptsGone, BuildFailedInCell, BuildFinished
from moorage.model import EndedAttempt, Guest

T = TypeVar("T")

_LONGEST_REASON = 1000


def in_batches(items: Sequence[T], most: int, size: Callable[[T], int] = lambda _item: 1) -> Iterable[Sequence[T]]:
    """Return items in batches, one for each message, of a total size of at most ``most``, or with one larger item."""
    # Without items there is nothing to send.
    return in_parts(items, size, most) if items else ()


def halves(items: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the two halves of a batch that was refused, or that does not fit into one message."""
    middle = len(items) // 2
    return items[:middle], items[middle:]


def unexpected(fault: Exception) -> str:
    """Return a reason for an unexpected exception of a driver."""
    return f"an unexpected fault of the driver: {type(fault).__name__}"


def accept(guest: Guest) -> AcceptInCell:
    """Return the message of the first gate: nothing is started before the cell has accepted the claim."""
    return AcceptInCell(
        request_id=ids.derived(guest.attempt_id, "agent", "accept_claim"), host=guest.host, **_attempt(guest)
    )


def finished(guest: Guest) -> BuildFinished:
    """Return the message of the second gate: the guest runs."""
    return BuildFinished(request_id=ids.derived(guest.attempt_id, "agent", "build_finished"), **_attempt(guest))


def failed(guest: Guest, reason: str, life: int | None, *, no_other_host: bool = False) -> BuildFailedInCell:
    """Return the message that the build has failed and nothing of the guest is left.

    :param life: the current life of its host, if known.
    """
    # The reason is part of the id: a restarted agent may have another reason, and then sends another request.
    shortened = reason[:_LONGEST_REASON]
    return BuildFailedInCell(
        request_id=ids.derived(guest.attempt_id, "agent", "build_failed", shortened),
        reason=shortened,
        life=life,
        no_other_host=no_other_host or None,
        **_attempt(guest),
    )


def _attempt(guest: Guest) -> dict[str, Any]:
    return {"instance_uuid": guest.instance_uuid, "attempt_id": guest.attempt_id, "claim_id": guest.claim_id}


def gone(agent: str, attempts: Sequence[EndedAttempt], lives: Mapping[str, int]) -> AttemptsGone:
    """Return the message that nothing is left of these attempts, and nothing will be started.

    :param lives: the known lives of their hosts.
    """
    names = [attempt.attempt_id for attempt in attempts]
    return AttemptsGone(
        request_id=ids.derived(names[0], "agent", "gone", *names[1:]),
        agent=agent,
        attempts=tuple(attempts),
        lives={attempt.host: lives[attempt.host] for attempt in attempts if attempt.host in lives},
    )
