"""Check the hosts of an order to move before it is recorded."""

from conductor.engine.preconditions import not_forced_down
from conductor.super.context import SuperPart
from moorage import errors
from moorage.messages import ListHosts
from moorage.model import HostState


class Targets(SuperPart):
    """Checks that a host can be the target or source of a move now. The scheduler's decision finds later changes.

    Both methods raise ``Unavailable`` if no scheduler answers.
    """

    def check(self, host: str | None, cell_uuid: str, *, leaving: str | None = None) -> None:
        """Refuse a target host that an instance of this cell cannot go to; null leaves the choice to the scheduler.

        :param leaving: the host that the instance must leave, which cannot be the target.
        :raises HostNotFound: the host is unknown.
        :raises InvalidState: the host is in another cell, is the host to leave, is down or is disabled.
        """
        if host is None:
            return
        nodes = self._nodes(host, cell_uuid)
        if host == leaving:
            raise errors.InvalidState(reason=f"the instance is on host {host} already")
        if all(node.forced_down or not node.up for node in nodes):
            raise errors.InvalidState(reason=f"host {host} is down")
        if all(node.disabled for node in nodes):
            why = f": {nodes[0].disabled_reason}" if nodes[0].disabled_reason else ""
            raise errors.InvalidState(reason=f"host {host} is disabled{why}")

    def require_down(self, host: str, cell_uuid: str) -> None:
        """Refuse an evacuation from a host that no operator has forced down.

        A host without a record cannot be marked: its cell checks whether it is silent.

        :raises InvalidState: the host is not forced down.
        """
        found = self._super.scheduler_client.call(ListHosts(service_host=host))
        nodes = [node for node in found if node.cell_uuid == cell_uuid]
        if not all(node.forced_down for node in nodes):
            raise not_forced_down(host)

    def _nodes(self, host: str, cell_uuid: str) -> list[HostState]:
        found = self._super.scheduler_client.call(ListHosts(service_host=host))
        if not found:
            raise errors.HostNotFound(name=host)
        nodes = [node for node in found if node.cell_uuid == cell_uuid]
        if not nodes:
            raise errors.InvalidState(reason=f"host {host} is in another cell than the instance")
        return nodes
