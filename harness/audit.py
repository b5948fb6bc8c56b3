"""What a store says after a run, against what its conductor says: over-committed providers and leaked allocations."""

from collections.abc import Collection
from dataclasses import dataclass

from moorage.database import Database
from placement_store import audit


@dataclass(frozen=True)
class Verdict:
    """How many providers hold more than their capacity, and how many allocations belong to nobody who lives.

    ``foreign`` are those that others have on consumers which were deleted: they are theirs, and no leak.
    """

    overcommitted: int
    leaked: int
    foreign: int = 0

    @property
    def clean(self) -> bool:
        """Whether all are none."""
        return self.overcommitted == self.leaked == self.foreign == 0

    def __str__(self) -> str:
        foreign = f"; foreign allocations: {self.foreign}" if self.foreign else ""
        return f"over-committed providers: {self.overcommitted}; leaked allocations: {self.leaked}{foreign}"


def judge(database: Database, living: Collection[str]) -> Verdict:
    """Return the verdict on a store, given the uuids of all consumers that may hold something."""
    report = database.read(audit.report)
    known = set(living)
    dead = [holder for holder in report.holders if holder.uuid not in known]
    return Verdict(
        overcommitted=len({finding.provider_uuid for finding in report.overcommitted}),
        leaked=sum(holder.allocations for holder in dead if not holder.foreign),
        foreign=sum(holder.allocations for holder in dead if holder.foreign),
    )
