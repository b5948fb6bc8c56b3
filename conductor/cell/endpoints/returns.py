"""The endpoint for hosts that return after an absence.

1. The agent reads the ended attempts of its hosts (`list_ended_attempts`), destroys their guests and reports them as
   gone (`attempts_gone`). Then their residues are released.
2. The agent lists all its guests (`return_hosts`), and the cell compares them with its records. If a guest is missing,
   its build is lost; the reason of an active instance names the loss until a host returns with its guest. A guest
   without an attempt is an unknown guest. A guest of an ended attempt keeps its host returning.
3. The other hosts count as up.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.endpoints.gates import CellGates
from conductor.cell.records import unknown_guests
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.steps.cleanup import CellCleanups
from conductor.engine.rows import batches
from conductor.engine.steps import Operation
from moorage.bus.bus import serves
from moorage.messages import AttemptsGone, BuildFailedInCell, Done, ListEndedAttempts, ListStrangersInCell, ReturnHosts
from moorage.model import EndedAttempt, Guest
from moorage.model.inspection import UnknownGuest

LOG = logging.getLogger(__name__)

_LOST = "its host has returned without it"
_NOTHING_LEFT = "its host reports that nothing of it is left, and it will not be started"


class CellReturns(CellPart):
    """Serves the requests of an agent whose hosts return. They are idempotent, so they are not stored.

    A guest is destroyed only if a record here names its attempt and claim, and the attempt has ended. A guest without
    a record is an unknown guest: it is recorded, and left running.
    """

    @serves(ListEndedAttempts)
    def list_ended_attempts(self, message: ListEndedAttempts) -> list[EndedAttempt]:
        """Return the ended attempts of these hosts whose guests are not known to be gone."""
        return [
            EndedAttempt(
                host=attempt.host,
                instance_uuid=attempt.instance_uuid,
                attempt_id=attempt.attempt_id,
                claim_id=attempt.claim,
            )
            for attempt in self._on_hosts(message.hosts, ended=True)
        ]

    @serves(AttemptsGone)
    def attempts_gone(self, message: AttemptsGone) -> Done:
        """Record that the guests of ended attempts are gone; their cleanups then release the residues.

        If an attempt has not ended here, it ends now: the store has refused its claim at the first gate, for instance
        because another client has released the claim.
        """
        for named in message.attempts:
            life = message.lives.get(named.host)
            self._cell.worker.enqueue(self._cell.database.write(partial(self._gone, named, life)))
        return Done()

    def _gone(self, named: EndedAttempt, life: int | None, connection: Connection) -> Operation | None:
        instance = self._cell.records.lock(connection, named.instance_uuid)
        if life is not None and life != self._cell.records.lives.of_host(connection, named.host).number:
            LOG.warning("An earlier life of host %s reports that attempt %s is gone", named.host, named.attempt_id)
            return None
        attempt = self._cell.records.attempt(connection, named.instance_uuid, named.attempt_id)
        known = None if attempt is None else (attempt.host, attempt.claim_id)
        if instance is None or attempt is None or known != (named.host, named.claim_id):
            LOG.warning("The unknown attempt %s is reported as gone", named.attempt_id)
            return None
        if attempt.ended:
            return CellCleanups(self._cell).gone(connection, attempt)
        failure = BuildFailedInCell(
            request_id=named.attempt_id,
            instance_uuid=named.instance_uuid,
            attempt_id=named.attempt_id,
            claim_id=named.claim_id,
            reason=_NOTHING_LEFT,
            life=life,
        )
        return CellGates(self._cell).fail(connection, instance, attempt, failure)

    @serves(ReturnHosts)
    def return_hosts(self, message: ReturnHosts) -> Done:
        """Compare the guests of hosts with the records; hosts without the guest of an ended attempt then count as up.

        The other hosts stay returning, and the answer to their next report names them. A host that is not returning, or
        not in the life that the message names, is ignored, because the list of its guests is outdated.
        """
        # Ignore outdated lists.
        hosts = self._current(message, message.hosts)
        guests = [guest for guest in message.guests if guest.host in set(hosts)]
        known = self._known(guests)
        # Fall back where a guest is missing. An agent of the previous release names no life: its list may be from any
        # life, so it does not prove that a guest is gone.
        proven = {host: message.lives[host] for host in hosts if host in message.lives}
        self._lose(self._on_hosts(list(proven)), {guest.attempt_id for guest in guests}, proven)
        self._find_again(message, list(known.values()))
        # Keep the hosts returning that still have the guest of an ended attempt: the agent must destroy it first.
        left = partial(self._left, message)
        held_up = {guest.host for guest in guests if (found := known.get(guest.attempt_id)) and left(found)}
        # Record the unknown guests, if the host is still in the life that the list names.
        unknown = [guest for guest in guests if guest.attempt_id not in known]
        for guest in unknown:
            LOG.warning("Host %s has a guest of %s without a record here", guest.host, guest.instance_uuid)

        def work(connection: Connection) -> None:
            current = self._cell.records.lives.returning_in(connection, hosts, message.lives, lock=True)
            for names in batches(current):
                of_these = [guest for guest in unknown if guest.host in set(names)]
                unknown_guests.replace(connection, self._cell.cell_uuid, message.agent, names, of_these)

        self._cell.database.write(work)
        # Do this last, after all comparisons: from now on builds may begin on these hosts.
        returned = self._cell.hosts.returned(
            message.agent, [host for host in hosts if host not in held_up], message.lives
        )
        self._cell.hosts.held_up(message.agent, sorted(held_up), message.lives)
        LOG.info("%d host(s) of agent %s have returned", len(returned), message.agent)
        return Done()

    def _current(self, message: ReturnHosts, hosts: Sequence[str]) -> list[str]:
        """Return the hosts that are returning and are in the life that the message names."""
        found = self._cell.database.read(
            lambda connection: self._cell.records.lives.returning_in(connection, hosts, message.lives)
        )
        if len(found) < len(hosts):
            LOG.info("%d host(s) are not returning, or are in another life", len(hosts) - len(found))
        return found

    @serves(ListStrangersInCell)
    def list_strangers(self, message: ListStrangersInCell) -> list[UnknownGuest]:
        """Return the unknown guests of this cell's hosts."""
        return self._cell.database.read(
            lambda connection: unknown_guests.list_all(connection, self._cell.cell_uuid, message)
        )

    def _on_hosts(self, hosts: Sequence[str], *, ended: bool = False) -> list[AttemptRecord]:
        return self._cell.database.read(partial(self._cell.records.on_hosts, hosts=hosts, ended=ended))

    def _known(self, guests: Sequence[Guest]) -> dict[str, AttemptRecord]:
        """Return the attempts of guests, keyed by attempt id, whose host and claim agree with the record."""
        named = [guest.attempt_id for guest in guests]
        found = self._cell.database.read(lambda connection: self._cell.records.by_ids(connection, named))
        return {
            guest.attempt_id: attempt
            for guest in guests
            if (attempt := found.get(guest.attempt_id)) is not None
            and (attempt.host, attempt.claim_id) == (guest.host, guest.claim_id)
        }

    def _left(self, message: ReturnHosts, named: AttemptRecord) -> bool:
        """Record that the guest of an ended attempt is still there, even if it was reported gone; return True if so."""

        def work(connection: Connection) -> bool:
            self._cell.records.lock(connection, named.instance_uuid)
            attempt = self._cell.records.attempt(connection, named.instance_uuid, named.attempt_id)
            if attempt is None or not attempt.ended:
                return False
            if not self._cell.records.lives.returning_in(connection, [attempt.host], message.lives):
                return False
            if attempt.guest_gone:
                LOG.warning("Host %s has a guest that was reported as gone: %s", attempt.host, attempt.attempt_id)
                self._cell.records.change_attempt(connection, attempt.attempt_id, guest_gone=False)
            return True

        return named.ended and self._cell.database.write(work)

    def _lose(self, attempts: Sequence[AttemptRecord], there: Collection[str], lives: Mapping[str, int]) -> None:
        """Fall back where a host has returned without a guest that it was building in an earlier life.

        The guest on the source of a move is ignored: if it is missing, the end of the move finds that out.
        """
        absent = [each for each in attempts if each.attempt_id not in there and not each.ended and each.state != "held"]
        active = [each for each in absent if each.state == "active"]
        uuids = sorted({each.instance_uuid for each in active})
        reasons = self._cell.database.read(partial(self._cell.records.reasons, uuids=uuids))
        # Skip those that are on record: if there are too many for one message, its repetition continues after them.
        lost = [each for each in active if reasons.get(each.instance_uuid) != _without_guest(each.host)]
        if lost:
            instance, host = lost[0].instance_uuid, lost[0].host
            LOG.error(
                "%d active instance(s) have lost their guests, the first: %s on host %s", len(lost), instance, host
            )
        for missing in (*(each for each in absent if each.state != "active"), *lost):
            self._cell.worker.enqueue(self._cell.database.write(partial(self._lost, missing, lives[missing.host])))

    def _lost(self, missing: AttemptRecord, life: int, connection: Connection) -> Operation | None:
        instance = self._cell.records.lock(connection, missing.instance_uuid)
        attempt = self._cell.records.attempt(connection, missing.instance_uuid, missing.attempt_id)
        if instance is None or attempt is None or instance.attempt_number != attempt.number:
            return None
        # Compare under the lock that the first gate takes too. After the host has returned, an attempt may begin there
        # that is not in the list: it must not count as lost.
        present = self._cell.records.lives.of_host(connection, attempt.host)
        if not present.is_returning or present.number != life or attempt.host_life >= life:
            return None
        # While a move is being placed, the attempt on the source is the current one.
        if attempt.state == "active" and instance.state in ("active", "moving", "moved"):
            # The allocations stay: the operator decides whether to move the instance.
            self._cell.records.change(connection, instance.uuid, reason=_without_guest(attempt.host))
        kind = self._cell.sequences.kind(instance)
        if attempt.state not in ("starting", "building") or kind is None:
            return None
        pending = self._cell.operations.lock_one_pending(connection, instance.uuid, kind)
        # At `start` the order is sent (again) to the host in its current life. A pending swap must not be changed.
        if pending is None or pending.step != "wait":
            return None
        LOG.warning("Attempt %d of instance %s was lost with host %s", attempt.number, instance.uuid, attempt.host)
        # The guest is gone for good: if the attempt has not passed the first gate yet, it cannot pass it any more.
        self._cell.records.change_attempt(connection, attempt.attempt_id, state="failed", reason=_LOST, guest_gone=True)
        following = self._cell.sequences.next_step(connection, instance, attempt.number, _LOST, "gone")
        return self._cell.operations.redirect(connection, pending, following)

    def _find_again(self, message: ReturnHosts, there: Sequence[AttemptRecord]) -> None:
        """Clear the reason of instances with whose guests a host has returned, after it had returned without them."""
        uuids = sorted({each.instance_uuid for each in there})
        reasons = self._cell.database.read(partial(self._cell.records.reasons, uuids=uuids))

        def clear(attempt: AttemptRecord, connection: Connection) -> None:
            uuid, host = attempt.instance_uuid, attempt.host
            instance = self._cell.records.lock(connection, uuid)
            # The guest of another attempt there may be lost, for instance during a resize on the same host.
            if instance is None or instance.attempt_number != attempt.number:
                return
            is_named = self._cell.records.reasons(connection, [uuid])[uuid] == _without_guest(host)
            if is_named and self._cell.records.lives.returning_in(connection, [host], message.lives):
                LOG.warning("Host %s has the guest of instance %s again", host, uuid)
                self._cell.records.change(connection, uuid, reason=None)

        for attempt in there:
            if reasons.get(attempt.instance_uuid) == _without_guest(attempt.host):
                self._cell.database.write(partial(clear, attempt))


def _without_guest(host: str) -> str:
    """Return the reason of an active instance whose host has returned without its guest."""
    return f"{host} has returned without the guest"
