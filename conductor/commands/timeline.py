"""Describe the history of an instance: its attempts with their times, its claims and its attached groups."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from moorage.model import Attempt, Explanation, Instance, Migration
from moorage.model.inspection import ClaimState

#: Shown for an instance without a claim.
NOTHING = "nothing"

_UNDER_WAY = ("starting", "building")


def timeline(one: Instance | Migration) -> dict[str, Any]:
    """Return the history of an instance or of a migration as fields in the order of time."""
    attempts = {f"attempt_{attempt.number}": attempt_in_words(attempt) for attempt in one.attempts}
    return {"asked_for": _moment(one.created_at), **attempts, "last_changed": _moment(one.updated_at)}


def holdings(instance: Instance, claims: Sequence[ClaimState]) -> dict[str, Any]:
    """Return the nodes of the claims of an instance, of its migrations and of its residues."""
    migrations = migrations_of(instance)
    numbers = {attempt.attempt_id: attempt.number for attempt in instance.attempts}
    fields: dict[str, Any] = {}
    for claim in claims:
        if claim.consumer_uuid == instance.uuid:
            accepted = (
                "not accepted" if claim.accepted_by is None else f"accepted on {claim.accepted_host or 'its host'}"
            )
            fields["holds"] = f"{claim.node}, {accepted}, claimed {claim.age:.0f} s ago"
        elif claim.consumer_uuid in migrations:
            what = "still holds" if claim.claim_id is None else "holds"
            fields[f"migration {claim.consumer_uuid}"] = f"{what} {claim.node}, claimed {claim.age:.0f} s ago"
        elif claim.consumer_uuid in numbers:
            number = numbers[claim.consumer_uuid]
            fields[f"residue_{number}"] = f"{claim.node}, for the guest of attempt {number}, {claim.age:.0f} s old"
    return {"holds": NOTHING} | fields


def attached(instance: Instance, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the groups that were attached to an instance after its build, with the providers they are claimed from.

    :param names: the names of providers by uuid; a provider without a name is shown by its uuid.
    """
    fields: dict[str, Any] = {}
    for suffix, one in sorted(instance.attached.items()):
        amounts = ", ".join(f"{amount} {name}" for name, amount in sorted(one.resources.items()))
        of = "not claimed yet"
        if one.provider_uuid is not None:
            of = f"of {names.get(one.provider_uuid, one.provider_uuid)}"
        fields[f"attached {suffix}"] = f"{amounts}, {of}"
    return fields


def explained(explanation: Explanation, found_by: str) -> dict[str, str]:
    """Return in one line why there was no valid host, and the command that explains it in full.

    :param found_by: the option of `moorage explain` that names the request.
    """
    return {"explanation": explanation.summary(), "explained_by": f"moorage explain {found_by}"}


def migrations_of(instance: Instance) -> set[str]:
    """Return the uuids of all migrations of an instance."""
    made = {attempt.migration_uuid for attempt in instance.attempts} | {instance.migration_uuid}
    return {uuid for uuid in made if uuid is not None}


def attempt_in_words(attempt: Attempt) -> str:
    """Return the host, the state and the times of an attempt in words."""
    why = f": {attempt.reason}" if attempt.reason else ""
    until = "" if attempt.state in _UNDER_WAY else f" to {_moment(attempt.updated_at)}"
    final = "; no other host is tried" if attempt.no_other_host else ""
    left = "; its guest may be left" if attempt.guest_left and attempt.state in ("failed", "ended") else ""
    move = "" if attempt.migration_uuid is None else f" of migration {attempt.migration_uuid}"
    return f"{attempt.host}, {attempt.state}{move}{why} ({_moment(attempt.created_at)}{until}{final}{left})"


def _moment(seconds: float) -> str:
    """Return a time in UTC, formatted for operators."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
