"""The life of an instance in words: each attempt with its times, and who holds what for it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from moorage.inspection import ClaimState
from moorage.model import Attempt, Instance

_UNDER_WAY = ("starting", "building")


def timeline(instance: Instance) -> dict[str, Any]:
    """Return what has happened to an instance, in the order in which it happened."""
    fields: dict[str, Any] = {"asked_for": _moment(instance.created_at)}
    for attempt in instance.attempts:
        fields[f"attempt_{attempt.number}"] = _attempt(attempt)
    fields["last_changed"] = _moment(instance.updated_at)
    return fields


def holdings(instance: Instance, claims: Sequence[ClaimState]) -> dict[str, Any]:
    """Return on which nodes the instance holds something, and what is held for guests of its attempts."""
    numbers = {attempt.attempt_id: attempt.number for attempt in instance.attempts}
    fields: dict[str, Any] = {}
    for claim in claims:
        if claim.consumer_uuid == instance.uuid:
            accepted = (
                "not accepted" if claim.accepted_by is None else f"accepted on {claim.accepted_host or 'its host'}"
            )
            fields["holds"] = f"{claim.node}, {accepted}, claimed {claim.age:.0f} s ago"
        elif claim.consumer_uuid in numbers:
            number = numbers[claim.consumer_uuid]
            fields[f"residue_{number}"] = f"{claim.node}, for the guest of attempt {number}, {claim.age:.0f} s old"
    return {"holds": "nothing"} | fields


def _attempt(attempt: Attempt) -> str:
    why = f": {attempt.reason}" if attempt.reason else ""
    until = "" if attempt.state in _UNDER_WAY else f" to {_moment(attempt.updated_at)}"
    left = "; its guest may be left" if attempt.guest_left and attempt.state in ("failed", "ended") else ""
    return f"{attempt.host}, {attempt.state}{why} ({_moment(attempt.created_at)}{until}{left})"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
