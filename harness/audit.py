"""Audit a store after a run by the rules of `moorage audit`, given the consumers that may have allocations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from msgspec import structs

from moorage.cli.audit.findings import CONDUCTORS, CloudState, Finding
from moorage.cli.audit.findings import judge as judge_sight
from moorage.db.database import Database
from moorage.ids import derived
from moorage.model import Flavor, Instance
from placement_store.upkeep import audit

_FLAVOR = Flavor(vcpus=0, memory_mb=0)
_COUNTED = frozenset({"over-committed", "leaked"})
#: A run writes nothing through the placement API, so each consumer without a claim is a finding.
_NO_CLAIM = derived("harness", "audit", "no claim")


@dataclass(frozen=True)
class Verdict:
    """All findings, with the number of over-allocated providers and of allocations without an owner."""

    overcommitted: int
    leaked: int
    findings: Sequence[Finding]

    @property
    def clean(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        others = [f"; {one.kind} {one.subject}: {one.detail}" for one in self.findings if one.kind not in _COUNTED]
        return f"over-committed providers: {self.overcommitted}; leaked allocations: {self.leaked}{''.join(others)}"


def judge(database: Database, living: Collection[str]) -> Verdict:
    """Return the verdict on a store, given the uuids of all instances and migrations that may have allocations."""
    store = database.read(audit.report)
    holders = [
        structs.replace(holder, claim_id=holder.claim_id or _NO_CLAIM, owner=CONDUCTORS) for holder in store.holders
    ]
    known = set(living)
    migrations = {holder.migration_of: holder.uuid for holder in holders if holder.uuid in known}
    instances = [
        Instance(
            uuid=uuid,
            project_id="harness",
            user_id="harness",
            flavor=_FLAVOR,
            state="active",
            migration_uuid=migrations.get(uuid),
        )
        for uuid in known
    ]
    store = structs.replace(store, holders=tuple(holders))
    findings = judge_sight(CloudState(store=store, instances=instances, all_recorded=True))
    over = {finding.subject for finding in findings if finding.kind == "over-committed"}
    leaked = {finding.subject for finding in findings if finding.kind == "leaked"}
    return Verdict(
        overcommitted=len(over),
        leaked=sum(holder.allocations for holder in holders if holder.uuid is None or holder.uuid in leaked),
        findings=findings,
    )
