"""The endpoint that forwards provider reports and reshapes of a cell's agents to the placement role."""

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.hosts import agent_reports
from conductor.cell.hosts.agent_reports import MessagePlace
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    EnsureTrait,
    ListProviderTrees,
    ListProviderTreesInCell,
    ProvidersReported,
    ReportProviders,
    ReportProviderTree,
    ReshapeByInstructions,
    ReshapeProviderTree,
)
from moorage.model import ReshapePlan, ResourceProvider

_CUSTOM = "CUSTOM_"


class CellProviders(CellPart):
    """Forwards messages about providers. A cell has no records of providers, only of the order of messages.

    A mutation is forwarded with its own request id, so that a repetition finds the stored answer through any conductor
    of the cell. It raises ``InvalidState`` if a later message of the agent was received before. Each method raises
    ``StoreUnavailable`` if the placement role does not answer, and ``Overloaded`` if it has not answered for a while.
    """

    @serves(ListProviderTreesInCell)
    def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
        """Return the provider trees of an agent's hosts from the placement role."""
        return self._cell.call_placement(ListProviderTrees(uuids=message.uuids))

    @serves(ReportProviderTree)
    def report_provider_tree(self, message: ReportProviderTree) -> ProvidersReported:
        """Forward the providers of an agent's hosts."""
        self._require_in_order(message)
        return self._cell.call_placement(
            ReportProviders(request_id=message.request_id, providers=message.providers, gone=message.gone)
        )

    @serves(ReshapeProviderTree)
    def reshape_provider_tree(self, message: ReshapeProviderTree) -> ReshapePlan:
        """Forward a reshape: inventories move within a host's tree with their allocations, in one transaction.

        Custom traits of new providers are created first, as for a report.
        """
        self._require_in_order(message)
        described = {name for child in message.providers for name in child.traits}
        for name in sorted(name for name in described if name.startswith(_CUSTOM)):
            self._cell.call_placement(EnsureTrait(request_id=ids.derived(message.request_id, "trait", name), name=name))
        return self._cell.call_placement(
            ReshapeByInstructions(
                request_id=message.request_id,
                instructions=message.instructions,
                providers=message.providers,
                dealt=message.dealt,
            )
        )

    def _require_in_order(self, message: ReportProviderTree | ReshapeProviderTree) -> None:
        """Refuse a message that arrives after a later one; forward a repetition of the last message."""

        def work(connection: Connection) -> MessagePlace:
            return agent_reports.take(connection, self._cell.cell_uuid, message, "providers", repeatable=True)

        if self._cell.database.write(work) is not MessagePlace.NEXT:
            raise errors.InvalidState(reason=f"a later message of agent {message.agent} has been taken")
