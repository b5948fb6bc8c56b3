"""What a cell passes on between its agents and the placement role: what the providers of their hosts are."""

from sqlalchemy import Connection

from conductor.cell.hosts.agent_reports import AgentReports, Order
from moorage import errors, ids
from moorage.bus.bus import Client, serves
from moorage.db.database import Database
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


class CellProviders:
    """Keeps nothing but the order of messages: providers know nothing of cells, and no cell of providers.

    What changes something is passed on under its own request id, so that a repeat finds the stored answer whichever
    conductor of the cell takes it.
    """

    def __init__(self, database: Database, cell_uuid: str, placement: Client) -> None:
        self._database = database
        self._reports = AgentReports(cell_uuid)
        self._placement = placement

    @serves(ListProviderTreesInCell)
    def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
        """Answer with the trees of an agent's hosts, as the placement role has them."""
        return self._placement.call(ListProviderTrees(uuids=message.uuids))

    @serves(ReportProviderTree)
    def report_provider_tree(self, message: ReportProviderTree) -> ProvidersReported:
        """Have the placement role know what the providers of an agent's hosts are.

        :raises InvalidState: a later message of the agent has been taken.
        """
        self._require_in_order(message)
        return self._placement.call(
            ReportProviders(request_id=message.request_id, providers=message.providers, gone=message.gone)
        )

    @serves(ReshapeProviderTree)
    def reshape_provider_tree(self, message: ReshapeProviderTree) -> ReshapePlan:
        """Have the placement role move inventories within a host's tree, and in the same transaction allocations.

        Custom traits of new providers come to be by being described, as in a report: the drivers know what there is.

        :raises InvalidState: a later message of the agent has been taken.
        """
        self._require_in_order(message)
        described = {name for child in message.providers for name in child.traits}
        for name in sorted(name for name in described if name.startswith(_CUSTOM)):
            self._placement.call(EnsureTrait(request_id=ids.derived(message.request_id, "trait", name), name=name))
        return self._placement.call(
            ReshapeByInstructions(
                request_id=message.request_id,
                instructions=message.instructions,
                providers=message.providers,
                dealt=message.dealt,
            )
        )

    def _require_in_order(self, message: ReportProviderTree | ReshapeProviderTree) -> None:
        """Refuse a message that comes after its successor; the same one once more is passed on."""

        def work(connection: Connection) -> Order:
            return self._reports.take(
                connection, message.agent, message.incarnation, message.number, "providers", repeatable=True
            )

        if self._database.write(work) is not Order.NEXT:
            raise errors.InvalidState(reason=f"a later message of agent {message.agent} has been taken")
