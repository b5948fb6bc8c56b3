"""What an agent says of an attempt: each message, with ids that follow from the attempt's."""

from collections.abc import Mapping, Sequence

from compute.driver import GuestSpec
from moorage import ids
from moorage.messages import AcceptInCell, AttemptsGone, BuildFailedInCell, BuildFinished, BuildOnHost
from moorage.model import EndedAttempt, Guest

_LONGEST_REASON = 1000


def guest(order: BuildOnHost) -> Guest:
    """Return the guest that an order is about."""
    return Guest(
        instance_uuid=order.instance_uuid,
        host=order.host,
        attempt_id=order.attempt_id,
        claim_id=order.claim_id,
        resources=order.resources,
    )


def guest_spec(order: BuildOnHost) -> GuestSpec:
    """Return what the driver is to make."""
    return GuestSpec(
        instance_uuid=order.instance_uuid,
        attempt_id=order.attempt_id,
        claim_id=order.claim_id,
        request_spec=order.request_spec,
        resources=order.resources,
        allocation_request=order.allocation_request,
        moving=order.moving,
        node=order.node,
    )


def unexpected(fault: Exception) -> str:
    """Return the reason for what a driver could not do, when it does not say it itself."""
    return f"an unexpected fault of the driver: {type(fault).__name__}"


def accept(guest: Guest) -> AcceptInCell:
    """Ask at the first gate: nothing is started before the cell has said that the claim is this attempt's."""
    return AcceptInCell(
        request_id=ids.derived(guest.attempt_id, "agent", "accept_claim"),
        instance_uuid=guest.instance_uuid,
        claim_id=guest.claim_id,
        attempt_id=guest.attempt_id,
        host=guest.host,
    )


def finished(guest: Guest) -> BuildFinished:
    """Ask at the second gate: the guest runs."""
    return BuildFinished(
        request_id=ids.derived(guest.attempt_id, "agent", "build_finished"),
        instance_uuid=guest.instance_uuid,
        attempt_id=guest.attempt_id,
        claim_id=guest.claim_id,
    )


def failed(guest: Guest, reason: str, life: int | None, *, no_other_host: bool = False) -> BuildFailedInCell:
    """Return the message that nothing of the guest is left, and why.

    :param life: that of its host, if it is known.
    """
    # The reason is part of the id: a restarted agent may have only another to give, which is another request.
    told = reason[:_LONGEST_REASON]
    return BuildFailedInCell(
        request_id=ids.derived(guest.attempt_id, "agent", "build_failed", told),
        instance_uuid=guest.instance_uuid,
        attempt_id=guest.attempt_id,
        claim_id=guest.claim_id,
        reason=told,
        life=life,
        no_other_host=no_other_host or None,
    )


def ended(guest: Guest) -> EndedAttempt:
    """Return the record of an attempt whose guest was refused by its cell."""
    return EndedAttempt(
        host=guest.host, instance_uuid=guest.instance_uuid, attempt_id=guest.attempt_id, claim_id=guest.claim_id
    )


def gone(agent: str, attempts: Sequence[EndedAttempt], lives: Mapping[str, int]) -> AttemptsGone:
    """Return the message that nothing of these attempts is left, and nothing will come.

    :param lives: those of their hosts, as far as they are known.
    """
    names = [attempt.attempt_id for attempt in attempts]
    return AttemptsGone(
        request_id=ids.derived(names[0], "agent", "gone", *names[1:]),
        agent=agent,
        attempts=tuple(attempts),
        lives={attempt.host: lives[attempt.host] for attempt in attempts if attempt.host in lives},
    )
