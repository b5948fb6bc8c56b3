"""Read from the placement role which hosts of a cell are forced down: no operation waits for their answers."""

import logging
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from conductor.cell.records.instances import CellRecords
from conductor.engine.guarded_client import GuardedClient
from moorage import errors
from moorage.db.database import Database
from moorage.messages import ListHostsDeclaredDown

LOG = logging.getLogger(__name__)


class ForcedDownHosts:
    """Reads forced-down hosts from the placement role, because a cell does not call schedulers.

    :param placement: a client with a short timeout, because the caller of an order waits for the answer.
    """

    def __init__(self, cell_uuid: str, placement: GuardedClient, database: Database, records: CellRecords) -> None:
        self._cell_uuid = cell_uuid
        self._placement = placement
        self._database = database
        self._records = records

    def has(self, host: str, *, or_disabled: bool = False) -> bool:
        """Return True if a host is forced down with all its nodes, or was deleted.

        Return False if the placement role does not answer: then the operation waits for the host.

        :param or_disabled: return True for a disabled host too: nothing new may start there.
        """
        try:
            return self._is_listed(host, or_disabled=or_disabled)
        except errors.MoorageError as fault:
            LOG.warning("It is unknown whether host %s was forced down or disabled: %s", host, fault)
            return False

    def surely_has(self, host: str) -> bool:
        """Return what :meth:`has` returns, but raise an error if it is unknown.

        :raises StoreUnavailable: the placement role does not answer.
        """
        return self._surely(host)

    def surely_deleted(self, host: str) -> bool:
        """Return whether a host has no record, so that it cannot be forced down.

        :raises StoreUnavailable: the placement role does not answer.
        """
        return self._surely(host, only_deleted=True)

    def _surely(self, host: str, *, only_deleted: bool = False) -> bool:
        try:
            return self._is_listed(host, only_deleted=only_deleted)
        except errors.Unavailable as fault:
            # Not the error itself: a caller that gets NoReply from this cell would take the cell for silent.
            reason = f"it is unknown whether host {host} is forced down: {fault}"
            raise errors.StoreUnavailable(schema="main", reason=reason) from fault

    def deleted(self, hosts: Sequence[str]) -> Collection[str]:
        """Return those of some hosts that an operator has deleted; none if the placement role does not answer."""
        message = ListHostsDeclaredDown(cell_uuid=self._cell_uuid, service_hosts=tuple(hosts), only_deleted=True)
        try:
            return self._placement.call(message)
        except errors.MoorageError as fault:  # a placement role of an earlier release refuses the message
            LOG.info("It is unknown which of %d silent host(s) were deleted: %s", len(hosts), fault)
            return ()

    def _is_listed(self, host: str, **which: bool) -> bool:
        message = ListHostsDeclaredDown(cell_uuid=self._cell_uuid, service_hosts=(host,), **which)
        return bool(self._placement.call(message))

    def host_of(self, instance_uuid: str, *, evacuates: bool = False) -> str | None:
        """Return the host of an instance that can be moved, if the host is forced down or was deleted.

        Call it before the transaction of an order, which must not wait for the placement role's answer.

        :param evacuates: the instance is to be evacuated; it may be in error.
        :raises StoreUnavailable: the instance is to be evacuated, and the placement role does not answer.
        """

        def work(connection: Connection) -> str | None:
            instance = self._records.read(connection, instance_uuid)
            if instance is None or instance.claim_id is None or instance.state not in states:
                return None
            return self._records.current(connection, instance).host

        states = ("active", "error") if evacuates else ("active",)
        host = self._database.read(work)
        if host is None:
            return None
        return host if (self.surely_has(host) if evacuates else self.has(host)) else None


def must_be_evacuated(instance_uuid: str, host: str, what: str) -> errors.InvalidState:
    """Return the refusal of an order about an instance on a host that is forced down.

    :param what: what would need the guest on that host, as in "nothing of it can be put on the shelf".
    """
    reason = f"instance {instance_uuid} is on host {host}, which is forced down, so that {what}: evacuate it"
    return errors.InvalidState(reason=reason)


def why_waiting(host: str, fault: errors.MoorageError) -> str:
    """Return the reason for waiting for a host, with the command to run if the host will not return."""
    return (
        f"{host}: {fault} It is waited for; if it will not come back, and once it is certain that nothing runs there, "
        f"run `moorage host set {host} --forced-down`"
    )
