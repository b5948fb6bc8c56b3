"""The placement role's providers in memory: trees with generations that are compared and bumped."""

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from moorage import errors, ids
from moorage.messages import ProvidersReported
from moorage.model import (
    ChildProvider,
    Dealt,
    Inventory,
    MoveInstruction,
    ProviderReport,
    ReshapePlan,
    ResourceProvider,
)


class FakeProviders:
    """Providers by uuid, parents before their children. Allocations there are none: nobody here claims."""

    def __init__(self) -> None:
        self.records: dict[str, ResourceProvider] = {}
        self.lock = threading.RLock()

    def trees(self, uuids: Sequence[str]) -> list[ResourceProvider]:
        with self.lock:
            roots = {self.records[uuid].root_provider_uuid for uuid in uuids if uuid in self.records}
            return [record for record in self.records.values() if record.root_provider_uuid in roots]

    def named(self, name: str) -> ResourceProvider:
        with self.lock:
            return next(record for record in self.records.values() if record.name == name)

    def names(self) -> set[str]:
        with self.lock:
            return {record.name for record in self.records.values()}

    def change(self, uuid: str, **changes: Any) -> None:
        """Change a provider as somebody else would, or, with nothing to change, bump its generation as a claim does."""
        with self.lock:
            found = self.records[uuid]
            self.records[uuid] = msgspec.structs.replace(found, generation=found.generation + 1, **changes)

    def report(self, reports: Sequence[ProviderReport], gone: Sequence[str]) -> ProvidersReported:
        """All or nothing."""
        with self.lock:
            for report in reports:
                found = self.records.get(report.uuid)
                if found and report.generation not in (None, found.generation):
                    raise errors.ProviderGenerationConflict(
                        provider_uuid=report.uuid, named=report.generation, found=found.generation
                    )
            for uuid in gone:
                self.records.pop(uuid, None)
            for report in reports:
                self._write(report)
            return ProvidersReported(
                generations={report.uuid: self.records[report.uuid].generation for report in reports}
            )

    def reshape(
        self, instructions: Sequence[MoveInstruction], children: Sequence[ChildProvider], dealt: tuple[Dealt, ...] = ()
    ) -> ReshapePlan:
        """Move inventories; what a child's inventories are like beyond their totals comes from its description."""
        with self.lock:
            created = {}
            described: dict[tuple[str, str], Any] = {}
            for child in children:
                uuid = child.uuid or ids.fresh()
                parent = self._found(child.parent)
                self._write(
                    ProviderReport(uuid=uuid, name=child.name, parent_provider_uuid=parent, traits=child.traits)
                )
                described |= {(uuid, name): fields for name, fields in child.inventories.items()}
                created[uuid] = child.name
            for move in instructions:
                source, place = self._found(move.from_resource_provider), self._found(move.to_resource_provider)
                for name, amount in move.moved_resources.items():
                    fields = described.get((place, name))
                    self._move(source, place, name, amount, fields and fields.allocation_ratio)
            return ReshapePlan(created=created, dealt=dealt)

    def _found(self, name_or_uuid: str) -> str:
        if name_or_uuid in self.records:
            return name_or_uuid
        return self.named(name_or_uuid).uuid

    def _move(self, source: str, place: str, name: str, amount: int, ratio: float | None) -> None:
        there = dict(self.records[source].inventories)
        total = there[name].total - amount
        arrived = self.records[place].inventories.get(name)
        new = amount + (arrived.total if arrived else 0)
        old = there.pop(name)
        if total:
            there[name] = msgspec.structs.replace(old, total=total)
        self.change(source, inventories=there)
        inventory = Inventory(total=new, max_unit=new, allocation_ratio=ratio or old.allocation_ratio)
        self.change(place, inventories=self.records[place].inventories | {name: inventory})

    def _write(self, report: ProviderReport) -> None:
        found = self.records.get(report.uuid)
        parent = self.records.get(report.parent_provider_uuid or "")
        self.records[report.uuid] = ResourceProvider(
            uuid=report.uuid,
            name=report.name,
            generation=found.generation + 1 if found else 1,
            root_provider_uuid=parent.root_provider_uuid if parent else report.uuid,
            parent_provider_uuid=parent.uuid if parent else None,
            inventories=report.inventories,
            traits=_said(report.traits, found.traits if found else ()),
            aggregates=_said(report.aggregates, found.aggregates if found else ()),
        )


def _said(names: Sequence[str] | None, before: tuple[str, ...]) -> tuple[str, ...]:
    return before if names is None else tuple(sorted(names))
