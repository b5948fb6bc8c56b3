"""What a store says after a run, against what its conductor says: over-committed providers and leaked allocations."""

from collections.abc import Collection
from dataclasses import dataclass

from moorage.database import Database
from placement_store import audit


@dataclass(frozen=True)
class Verdict:
    """How many providers hold more than their capacity, and how many allocations belong to nobody who lives."""

    overcommitted: int
    leaked: int

    @property
    def clean(self) -> bool:
        """Whether both are none."""
        return self.overcommitted == 0 and self.leaked == 0

    def __str__(self) -> str:
        return f"over-committed providers: {self.overcommitted}; leaked allocations: {self.leaked}"


def judge(database: Database, living: Collection[str]) -> Verdict:
    """Return the verdict on a store, given the uuids of all consumers that may hold something."""
    report = database.read(audit.report)
    known = set(living)
    return Verdict(
        overcommitted=len({finding.provider_uuid for finding in report.overcommitted}),
        leaked=sum(consumer.allocations for consumer in report.holders if consumer.uuid not in known),
    )
