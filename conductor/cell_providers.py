"""What a cell passes on between its agents and the placement role: what the providers of their hosts are."""

from moorage import ids
from moorage.bus import Client, serves
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
    """Keeps nothing: providers know nothing of cells, and no cell of providers.

    What changes something is passed on under its own request id, so that a repeat finds the stored answer whichever
    conductor of the cell takes it.
    """

    def __init__(self, placement: Client) -> None:
        self._placement = placement

    @serves(ListProviderTreesInCell)
    def list_provider_trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
        """Answer with the trees of an agent's hosts, as the placement role has them."""
        return self._placement.call(ListProviderTrees(uuids=message.uuids))

    @serves(ReportProviderTree)
    def report_provider_tree(self, message: ReportProviderTree) -> ProvidersReported:
        """Have the placement role know what the providers of an agent's hosts are."""
        return self._placement.call(
            ReportProviders(request_id=message.request_id, providers=message.providers, gone=message.gone)
        )

    @serves(ReshapeProviderTree)
    def reshape_provider_tree(self, message: ReshapeProviderTree) -> ReshapePlan:
        """Have the placement role move inventories within a host's tree, and in the same transaction allocations.

        Custom traits of new providers come to be by being described, as in a report: the drivers know what there is.
        """
        described = {name for child in message.providers for name in child.traits}
        for name in sorted(name for name in described if name.startswith(_CUSTOM)):
            self._placement.call(EnsureTrait(request_id=ids.derived(message.request_id, "trait", name), name=name))
        return self._placement.call(
            ReshapeByInstructions(
                request_id=message.request_id, instructions=message.instructions, providers=message.providers
            )
        )
