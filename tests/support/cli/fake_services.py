"""Fake services with the answers that commands of operators need, on an in-process bus."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.cli.shell import main
from moorage.config import options
from moorage.db.schemas import known_schemas
from moorage.ids import derived, fresh
from moorage.messages import (
    AuditStore,
    CompareView,
    Done,
    HoldsInCell,
    ListCells,
    ListClaims,
    ListHoldsInCell,
    ListHosts,
    ListInstances,
    ListResourceClasses,
    ListServices,
    ListStrangersInCell,
    Ownership,
    OwnsClaim,
    ReportService,
)
from moorage.model import Attempt, Cell, Flavor, HostState, Instance, InstanceHolds
from moorage.model.inspection import ClaimState, ServiceReport, ServiceState, StoreAudit, UnknownGuest, ViewDrift
from support.databases import migrated

CELL = Cell(uuid=derived("operator", "cell"), name="cell1")
LOST = derived("operator", "lost")
ATTEMPT = derived("operator", "attempt")


class Placement:
    """The answers of a placement role to the commands of operators."""

    def __init__(self) -> None:
        self.audits = [StoreAudit()]
        self.asked: list[AuditStore] = []
        self.claims = 0
        self.reported: list[ServiceReport] = []
        self.heard = 1.0

    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return [CELL]

    @serves(ReportService)
    def report_service(self, message: ReportService) -> Done:
        self.reported.append(message.service)
        return Done()

    @serves(ListServices)
    def list_services(self, _message: ListServices) -> list[ServiceState]:
        one = ServiceReport(name="one", kind="scheduler", machine="m1", version="9.9")
        cell = ServiceReport(name="two", kind="cell conductor", machine="m2", version="9.9", cell_uuid=CELL.uuid)
        return [
            ServiceState(service=one, heard=1.0, running=100.0),
            ServiceState(service=cell, heard=self.heard, running=200.0),
        ]

    @serves(AuditStore)
    def audit_store(self, message: AuditStore) -> StoreAudit:
        self.asked.append(message)
        return self.audits.pop(0) if len(self.audits) > 1 else self.audits[0]

    @serves(ListResourceClasses)
    def list_resource_classes(self, _message: ListResourceClasses) -> list[str]:
        return ["VCPU"]

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        """Return claims in the order of their uuids, which is not the order of their ages."""
        uuids = sorted(derived("operator", "claim", number) for number in range(self.claims))
        found = [uuid for uuid in uuids if message.after is None or uuid > message.after][: message.limit]
        return [
            ClaimState(consumer_uuid=uuid, consumer_type="INSTANCE", generation=1, age=float(int(uuid[-6:], 16)))
            for uuid in found
        ]


class Scheduler:
    """A scheduler's answers."""

    def __init__(self) -> None:
        self.drifted: tuple[str, ...] = ()
        self.age = 2.0

    @serves(ListHosts)
    def list_hosts(self, _message: ListHosts) -> list[HostState]:
        return [
            HostState(
                service_host="host1",
                nodename="host1",
                compute_node_uuid=derived("operator", "node"),
                cell_uuid=CELL.uuid,
                agent="agent1",
                availability_zone="nova",
                up=True,
                heartbeat_age=self.age,
            )
        ]

    @serves(CompareView)
    def compare_view(self, _message: CompareView) -> ViewDrift:
        return ViewDrift(hosts=1, drifted=self.drifted)


class Conductor:
    """A super conductor with one deleted instance, which has left a residue."""

    @serves(ListInstances)
    def list_instances(self, message: ListInstances) -> list[Instance]:
        gone = Instance(
            uuid=derived("operator", "gone"),
            project_id="p",
            user_id="u",
            flavor=Flavor(vcpus=1, memory_mb=1),
            state="deleted",
            attempts=(Attempt(attempt_id=ATTEMPT, number=1, host="host1", state="failed"),),
        )
        return [gone] if message.deleted else []


class CellConductor:
    """A cell with unknown guests, which waits for the host of the deleted instance."""

    def __init__(self) -> None:
        self.strangers: list[UnknownGuest] = []

    @serves(ListStrangersInCell)
    def list_strangers(self, _message: ListStrangersInCell) -> list[UnknownGuest]:
        return self.strangers

    @serves(ListHoldsInCell)
    def list_holds(self, _message: ListHoldsInCell) -> HoldsInCell:
        gone = InstanceHolds(
            instance_uuid=derived("operator", "gone"),
            state="deleted",
            settled=True,
            attempts=(ATTEMPT,),
            cleaned=(ATTEMPT,),
        )
        return HoldsInCell(instances=(gone,))


class OtherService:
    """Another service with claims: it wants the first, does not know the second, and does not want the others."""

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        if message.consumer_uuid == derived("operator", "other", 1):
            raise errors.ConsumerNotFound(name=message.consumer_uuid)
        return Ownership(owned=message.consumer_uuid == derived("operator", "other", 0))


class Surroundings:
    """The fake services, a configuration file, and an operator who types commands."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], closing: ExitStack) -> None:
        self._capsys = capsys
        self.closing = closing
        self.url = f"sqlite:///{folder}/moorage.sqlite"
        self.file = folder / "moorage.conf"
        self.file.write_text(
            f"[DEFAULT]\ntransport_url = inproc://{fresh()}/\n[database]\nconnection = {self.url}\n"
            "[service]\nsilent_after = 30\nreport_interval = 0.1\n[rpc]\ncall_timeout = 20\n"
        )
        self.conf = options.new(files=[self.file])
        self.bus = Bus(self.conf)
        closing.callback(self.bus.close)
        self.placement, self.scheduler, self.cell = Placement(), Scheduler(), CellConductor()

    def create_tables(self) -> None:
        migrated.give_tables(self.url, *known_schemas().values())

    def serve(self, **topics: object) -> None:
        """Serve these roles, all by default."""
        every = {"placement": self.placement, "scheduler": self.scheduler, "conductor": Conductor(), "cell": self.cell}
        for name, service in (topics or every).items():
            topic = f"conductor.{CELL.uuid}" if name == "cell" else name
            self.bus.server(topic, "one", [service]).start()

    def types(self, *words: str) -> tuple[int, Any]:
        """Type a command; return its exit status and its output."""
        status = main(["--config-file", str(self.file), *words, "-f", "json"])
        printed = self._capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else printed.err
