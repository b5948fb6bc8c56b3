"""The newest instances, as they are placed or refused; and the history of one of them."""

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dashboard.explanations import described
from moorage import errors
from moorage.cli import lists
from moorage.cli.lists import MessageClient
from moorage.messages import ListInstances, ListMigrations, ListOperations, ShowInstance
from moorage.model import Attempt, Instance, Migration
from moorage.model.inspection import ClaimState
from scheduler.view.snapshot import Snapshot

#: After so many seconds without a request, the newest instance is searched for again: many may have come since then. If
#: the list is short, it is searched for as often.
_STALE_SECONDS = 60.0


class RecentRequests:
    """Reads the newest instances by their numbers: the known ones with their current states, and later ones.

    :param conductor: a client of the super conductor.
    :param most: the maximum number of instances.
    """

    def __init__(self, conductor: MessageClient, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._conductor = conductor
        self._most = most
        self._clock = clock
        self._start = 0
        self._asked = self._searched = -math.inf
        self._is_short = False

    def read(self) -> list[dict[str, Any]]:
        """Return the newest instances, the newest first.

        :raises MoorageError: the super conductor does not answer.
        """
        now = self._clock()
        # If the newest ones have been deleted for good, or the database has been restored, earlier ones are the newest.
        if now - self._asked > _STALE_SECONDS or (self._is_short and now - self._searched > _STALE_SECONDS):
            self._start = max(0, self._newest() - self._most)
            self._searched = now
        found = lists.instances(self._conductor, ListInstances(deleted=True, after=self._start))
        found = sorted(found, key=lambda one: -one.number)[: self._most]
        if len(found) == self._most:
            self._start = found[-1].number - 1
        self._is_short = len(found) < self._most and self._start > 0
        self._asked = self._clock()
        return [_in_short(instance) for instance in found]

    def _newest(self) -> int:
        """Return the greatest number of an instance, or 0, by bisection, because lists can only be read forwards."""
        low, high = 0, 1
        while (number := self._after(high)) is not None:
            low, high = number, 2 * max(number, high)
        while low < high:
            middle = (low + high) // 2
            number = self._after(middle)
            low, high = (low, middle) if number is None else (number, high)
        return low

    def _after(self, number: int) -> int | None:
        """Return the number of the next instance after a number, or None."""
        part = self._conductor.call(ListInstances(deleted=True, after=number, limit=1))
        return min((one.number for one in part), default=None)


def life(conductor: MessageClient, placement: MessageClient, view: Snapshot, uuid: str) -> dict[str, Any]:
    """Return an instance with its attempts, its moves, its operations and its allocations.

    :param view: has the host of each allocation.
    :raises InstanceNotFound: no instance has this uuid.
    :raises MoorageError: the super conductor does not answer.
    """
    instance = conductor.call(ShowInstance(instance_uuid=uuid))
    migrations = lists.migrations(conductor, ListMigrations(instance_uuid=uuid, ended=True))
    operations = lists.operations(conductor, ListOperations(instance_uuid=uuid, ended=True))
    consumers = {uuid, *(one.attempt_id for one in instance.attempts), *(one.uuid for one in migrations)}
    shown = {
        **_in_short(instance),
        "flavor": msgspec.to_builtins(instance.flavor),
        "claim_id": instance.claim_id,
        "explanation": None if instance.explanation is None else described(instance.explanation),
        "migrations": [_migration(one) for one in migrations],
        "operations": msgspec.to_builtins(operations),
        "now": time.time(),
    }
    try:
        claims = lists.claims_of(placement, consumers)
    except errors.Unavailable as fault:
        return shown | {"claims": None, "claims_unknown": str(fault)}
    return shown | {"claims": [{**msgspec.to_builtins(one), "at": _host(view, one)} for one in claims]}


def _host(view: Snapshot, claim: ClaimState) -> dict[str, Any] | None:
    """Return what identifies the host of a claim, or None if its provider is not one of a host that is known."""
    row = view.names.by_compute_node.get(claim.root_provider_uuid or "")
    if row is None:
        return None
    host = view.hosts[row]
    return {"host": host.service_host, "node": host.nodename, "cell_uuid": host.cell_uuid}


def _in_short(instance: Instance) -> dict[str, Any]:
    flavor = instance.flavor
    return {
        "uuid": instance.uuid,
        "number": instance.number,
        "state": instance.state,
        "project": instance.project_id,
        "size": f"{flavor.vcpus} VCPU, {flavor.memory_mb} MiB, {flavor.root_gb + flavor.ephemeral_gb} GiB",
        "host": instance.host,
        "cell": instance.cell,
        "cell_uuid": instance.cell_uuid,
        "reason": instance.reason,
        "request_id": instance.request_id,
        "created_at": instance.created_at,
        "updated_at": instance.updated_at,
        "migration_uuid": instance.migration_uuid,
        "attempts": [_attempt(one) for one in instance.attempts],
        "refused": None if instance.explanation is None else instance.explanation.summary(),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "host": attempt.host,
        "state": attempt.state,
        "reason": attempt.reason,
        "migration_uuid": attempt.migration_uuid,
        "created_at": attempt.created_at,
        "updated_at": attempt.updated_at,
    }


def _migration(one: Migration) -> dict[str, Any]:
    return {
        "uuid": one.uuid,
        "kind": one.kind,
        "state": one.state,
        "source": one.source_host,
        "destination": one.destination_host,
        "reason": one.reason,
        "created_at": one.created_at,
        "updated_at": one.updated_at,
        "explanation": None if one.explanation is None else described(one.explanation),
    }
