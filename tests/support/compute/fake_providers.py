"""The providers of an agent's hosts: an in-memory store, and what a test reads and changes in it."""

from collections.abc import Collection

from moorage.messages import ListProviderTrees, ProvidersReported, ReportProviders, ReshapeByInstructions
from moorage.messages.cell import ListProviderTreesInCell, ReportProviderTree, ReshapeProviderTree
from moorage.model import ReshapePlan, ResourceProvider
from support.placement_store.in_memory import InMemoryPlacement


class FakeProviders(InMemoryPlacement):
    """Provider trees as a cell forwards them. There are no claims, and so no allocations."""

    def trees(self, message: ListProviderTreesInCell) -> list[ResourceProvider]:
        return self.list_provider_trees(ListProviderTrees(uuids=message.uuids))

    def report(self, message: ReportProviderTree) -> ProvidersReported:
        report = ReportProviders(request_id=message.request_id, providers=message.providers, gone=message.gone)
        return self.report_providers(report)

    def move(self, message: ReshapeProviderTree) -> ReshapePlan:
        with self.lock:
            # The cell creates the traits of the children first.
            self.model.traits |= {trait for child in message.providers for trait in child.traits}
        moves = ReshapeByInstructions(
            request_id=message.request_id,
            instructions=message.instructions,
            providers=message.providers,
            dealt=message.dealt,
        )
        return self.reshape_by_instructions(moves)

    @property
    def records(self) -> dict[str, ResourceProvider]:
        """Return all providers by uuid, parents before their children."""
        with self.lock:
            return {uuid: self.model.shown(uuid) for uuid in self.model.providers}

    def named(self, name: str) -> ResourceProvider:
        return next(record for record in self.records.values() if record.name == name)

    def names(self) -> set[str]:
        return {record.name for record in self.records.values()}

    def change(self, uuid: str, **changes: Collection[str]) -> None:
        """Change a provider as another client would or, without changes, bump its generation as a claim does."""
        with self.lock:
            provider = self.model.providers[uuid]
            provider.generation += 1
            for name, words in changes.items():
                setattr(provider, name, frozenset(words))
