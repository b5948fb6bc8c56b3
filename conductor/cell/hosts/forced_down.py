"""Hosts of a cell that their operator has declared down: what they do not answer to need not be waited for."""

import logging

from moorage import errors
from moorage.bus.bus import Client
from moorage.messages import ListHostsDeclaredDown

LOG = logging.getLogger(__name__)


class ForcedDownHosts:
    """Asks the placement role, which has the operator's word on hosts; a cell does not call schedulers.

    :param placement: with a timeout that whoever gives an order can wait for.
    """

    def __init__(self, cell_uuid: str, placement: Client) -> None:
        self._cell_uuid = cell_uuid
        self._placement = placement

    def has(self, host: str) -> bool:
        """Tell whether a host is known to be forced down, with all its nodes, or to have been deleted.

        Where that cannot be found out it is not known, and the host is waited for.
        """
        return self._is_listed(ListHostsDeclaredDown(cell_uuid=self._cell_uuid, service_hosts=(host,)), host)

    def is_out_of_service(self, host: str) -> bool:
        """Tell whether nothing new is to be started on a host: it is known to be forced down, disabled or deleted."""
        message = ListHostsDeclaredDown(cell_uuid=self._cell_uuid, service_hosts=(host,), or_disabled=True)
        return self._is_listed(message, host)

    def _is_listed(self, message: ListHostsDeclaredDown, host: str) -> bool:
        try:
            return bool(self._placement.call(message))
        except errors.MoorageError as fault:
            LOG.warning("Whether host %s was forced down or disabled is not known: %s", host, fault)
            return False


def why_waiting(host: str, fault: errors.MoorageError) -> str:
    """Return why a host is waited for, and what an operator can do if it will not come back."""
    return (
        f"{host}: {fault} It is waited for; if it will not come back, and once it is certain that nothing runs there, "
        f"moorage host set {host} --forced-down"
    )
