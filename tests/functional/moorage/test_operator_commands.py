"""`moorage status`, `service list` and `audit` against peers that say what they are told to, on an in-process bus."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.cli.shell import main
from moorage.cli.status import intruders
from moorage.config import options
from moorage.db.database import Database
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
    ListServices,
    ListStrangersInCell,
    Ownership,
    OwnsClaim,
    ReportService,
)
from moorage.model import Attempt, Cell, Flavor, Guest, HostState, Instance, InstanceHolds
from moorage.model.inspection import (
    ClaimState,
    Holder,
    ServiceReport,
    ServiceState,
    StoreAudit,
    UnknownGuest,
    ViewDrift,
)
from moorage.service.heartbeat import Heartbeat

CELL = Cell(uuid=derived("operator", "cell"), name="cell1")
LOST = derived("operator", "lost")
ATTEMPT = derived("operator", "attempt")


class Placement:
    """The placement role, as far as an operator sees it."""

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

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        """Claims of which one is the older the more its uuid is of a hash."""
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
    """A super conductor that knows one deleted instance, which has left a residue."""

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
    """A cell with as many strangers as it is told, which waits for the host of the deleted instance."""

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
    """Another service with claims: it wants the first, knows nothing of the second, and does not want the others."""

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        if message.consumer_uuid == derived("operator", "other", 1):
            raise errors.ConsumerNotFound(name=message.consumer_uuid)
        return Ownership(owned=message.consumer_uuid == derived("operator", "other", 0))


class Around:
    """The peers, a configuration file, and an operator who types."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], closing: ExitStack) -> None:
        self._capsys = capsys
        self.closing = closing
        self.url = f"sqlite:///{folder}/moorage.sqlite"
        self.file = folder / "moorage.conf"
        self.file.write_text(
            f"[DEFAULT]\ntransport_url = inproc://{fresh()}/\n[database]\nconnection = {self.url}\n"
            "[service]\nsilent_after = 30\nreport_interval = 0.1\n[rpc]\ncall_timeout = 0.5\n"
        )
        self.conf = options.new(files=[self.file])
        self.bus = Bus(self.conf)
        closing.callback(self.bus.close)
        self.placement, self.scheduler, self.cell = Placement(), Scheduler(), CellConductor()

    def upgrade(self) -> None:
        database = Database(self.url, "all")
        for schema in known_schemas().values():
            schema.upgrade(database)
        database.close()

    def serve(self, **topics: object) -> None:
        """Serve these roles, all by default."""
        every = {
            "placement": self.placement,
            "scheduler": self.scheduler,
            "conductor": Conductor(),
            "cell": self.cell,
        }
        for name, service in (topics or every).items():
            topic = f"conductor.{CELL.uuid}" if name == "cell" else name
            self.bus.server(topic, "one", [service]).start()

    def types(self, *words: str) -> tuple[int, Any]:
        """Return the exit status and what was printed."""
        status = main(["--config-file", str(self.file), *words, "-f", "json"])
        printed = self._capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else printed.err


@pytest.fixture
def around(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Around]:
    with ExitStack() as closing:
        yield Around(tmp_path, capsys, closing)


def wrong(lines: list[Mapping[str, str]]) -> dict[str, str]:
    return {line["part"]: line["detail"] for line in lines if line["state"] != "ok"}


# --- moorage status -------------------------------------------------------------------------------------------------


def test_the_status_of_a_whole_cloud_is_ok_part_by_part(around: Around) -> None:
    around.upgrade()
    around.serve()
    status, lines = around.types("status")
    assert wrong(lines) == {}
    assert status == 0
    assert {line["part"] for line in lines} == {
        "bus",
        "role placement",
        "role scheduler",
        "role conductor",
        "role conductor of cell1",
        "schema main",
        "schema conductor",
        "schema cell of cell1",
        "distributions",
        "cells",
        "scheduler one",
        "cell conductor two of cell1",
        "agents of cell1",
    }


def test_the_status_names_each_part_that_is_away_and_goes_on(around: Around) -> None:
    around.serve(placement=around.placement)
    status, lines = around.types("status", "--timeout", "0.3")
    assert status == 1
    found = wrong(lines)
    assert set(found) == {
        "role scheduler",
        "role conductor",
        "role conductor of cell1",
        "schema main",
        "schema conductor",
        "schema cell of cell1",
        "agents",
    }
    assert errors.NotServed.code in found["role scheduler"]
    assert errors.StoreUnavailable.code in found["schema main"]
    assert not Path(around.url.removeprefix("sqlite:///")).exists(), "looking must not create a database"


def test_tables_of_another_version_are_told_with_what_to_do(around: Around) -> None:
    Database(around.url, "main").write(lambda connection: connection.exec_driver_sql("CREATE TABLE t (x INTEGER)"))
    _status, lines = around.types("status", "--timeout", "0.1")
    assert "moorage db upgrade" in wrong(lines)["schema main"]


def test_silent_services_and_agents_are_wrong(around: Around) -> None:
    around.upgrade()
    around.serve()
    around.placement.heard = around.scheduler.age = 31.0
    status, lines = around.types("status")
    assert status == 1
    assert wrong(lines) == {
        "cell conductor two of cell1": "version 9.9 on m2, heard of 31 s ago",
        "agents of cell1": "1 of 1 silent: agent1",
    }


def test_a_password_is_never_shown(around: Around) -> None:
    for connection in ("mysql+pymysql://me:secret@127.0.0.1:1/x", "nonsense:secret", "strange://me:secret@host/x"):
        around.file.write_text(
            f"[DEFAULT]\ntransport_url = rabbit://me:secret@127.0.0.1:1/\n[database]\nconnection = {connection}\n"
        )
        status, lines = around.types("status", "--timeout", "0.1")
        assert status == 1
        assert "secret" not in json.dumps(lines)


def test_only_distributions_other_than_ours_are_intruders() -> None:
    owners = {"scheduler": ["moorage", "rocketry"], "moorage": ["moorage"], "numpy": ["numpy"]}
    assert intruders(owners) == {"scheduler": ["rocketry"]}


# --- moorage service list -------------------------------------------------------------------------------------------


def test_services_are_listed_with_agents_known_by_their_hosts(around: Around) -> None:
    around.serve()
    around.placement.heard = 31.0
    status, lines = around.types("service", "list")
    assert status == 0
    shown = [(line["kind"], line["name"], line["cell"], line["state"], line["version"]) for line in lines]
    assert shown == [
        ("scheduler", "one", None, "up", "9.9"),
        ("cell conductor", "two", "cell1", "silent", "9.9"),
        ("compute", "agent1", "cell1", "up", None),
    ]


def test_services_are_listed_without_agents_while_no_scheduler_answers(around: Around) -> None:
    around.serve(placement=around.placement)
    status, lines = around.types("service", "list")
    assert (status, [line["kind"] for line in lines]) == (0, ["scheduler", "cell conductor"])


def test_a_service_reports_itself_until_it_stops_whoever_listens(around: Around) -> None:
    heartbeat = Heartbeat(around.conf, around.bus, "cell conductor", "two", CELL.uuid)
    heartbeat.start()
    around.serve(placement=around.placement)
    end = time.monotonic() + 20
    while len(around.placement.reported) < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
    heartbeat.stop()
    [report] = set(around.placement.reported)
    assert (report.kind, report.name, report.cell_uuid) == ("cell conductor", "two", CELL.uuid)
    assert report.version
    assert report.machine


# --- moorage audit --------------------------------------------------------------------------------------------------


def leak(uuid: str = LOST, kind: str = "INSTANCE", claim: str | None = LOST) -> StoreAudit:
    return StoreAudit(holders=(Holder(uuid=uuid, consumer_type=kind, claim_id=claim, allocations=2),))


def test_a_clean_cloud_has_no_findings(around: Around) -> None:
    around.serve()
    assert around.types("audit") == (0, [])


def test_what_is_there_at_both_looks_is_a_finding(around: Around) -> None:
    around.serve()
    around.placement.audits = [leak()]
    around.scheduler.drifted = ("host1",)
    guest = Guest(instance_uuid=LOST, host="host1", attempt_id=ATTEMPT, claim_id=LOST)
    around.cell.strangers = [UnknownGuest(guest=guest, cell_uuid=CELL.uuid, agent="agent1", age=1.0)]
    status, rows = around.types("audit", "--settle", "0.01")
    assert status == 1
    assert [(row["finding"], row["subject"]) for row in rows] == [
        ("leaked", LOST),
        ("stranger", "host1"),
        ("view", "host1"),
    ]


def test_a_store_of_many_holders_is_asked_part_by_part(around: Around) -> None:
    around.serve()
    other = derived("operator", "other")
    first = structs.replace(leak(), more_after=7)
    around.placement.audits = [first, leak(other), first, leak(other)]
    status, rows = around.types("audit", "--settle", "0.01")
    assert (status, [row["subject"] for row in rows]) == (1, [LOST, other])
    assert [message.after for message in around.placement.asked] == [0, 7, 0, 7]


def test_claims_are_shown_the_oldest_first_whatever_part_they_have_come_in(around: Around) -> None:
    around.serve()
    # Not the few tenths of a second of tests in which nobody answers: each part is thousands of rows.
    around.file.write_text(around.file.read_text().replace("call_timeout = 0.5", "call_timeout = 60"))
    around.placement.claims = 12_000
    status, rows = around.types("claim", "list")
    assert status == 0
    ages = [row["age"] for row in rows]
    assert len({row["consumer"] for row in rows}) == 12_000
    assert ages == sorted(ages, reverse=True)


def test_what_has_passed_at_the_second_look_is_no_finding(around: Around) -> None:
    around.serve()
    around.placement.audits = [leak(), StoreAudit()]
    assert around.types("audit", "--settle", "0.01") == (0, [])


def test_the_residue_of_a_deleted_instance_is_no_leak(around: Around) -> None:
    around.serve()
    around.placement.audits = [leak(ATTEMPT, "RESIDUE", None)]
    assert around.types("audit", "--settle", "0.01") == (0, [])


def claims_of(owner: str) -> StoreAudit:
    uuids = [derived("operator", "other", number) for number in range(3)]
    return StoreAudit(
        holders=tuple(
            Holder(uuid=uuid, consumer_type="INSTANCE", claim_id=uuid, allocations=1, owner=owner) for uuid in uuids
        )
    )


def test_a_claim_of_another_service_is_leaked_only_by_the_word_of_that_service(around: Around) -> None:
    around.serve()
    around.serve(leases=OtherService())
    around.placement.audits = [claims_of("leases")]

    status, rows = around.types("audit", "--settle", "0.01")

    unknown, unwanted = (derived("operator", "other", number) for number in (1, 2))
    assert status == 1
    assert {row["subject"]: row["detail"] for row in rows} == {
        unknown: f"leases does not know it: There is no consumer {unknown}.",
        unwanted: "leases does not want it",
    }


def test_claims_of_a_service_that_does_not_answer_are_not_called_leaked(around: Around) -> None:
    around.serve()
    around.placement.audits = [claims_of("leases")]

    status, rows = around.types("audit", "--settle", "0.01")

    assert (status, [(row["finding"], row["subject"]) for row in rows]) == (2, [("not seen", "claims of leases")])


def test_what_could_not_be_looked_at_is_named_and_is_not_called_clean(around: Around) -> None:
    around.serve(placement=around.placement, conductor=Conductor())
    status, rows = around.types("audit", "--timeout", "0.3")
    assert status == 2
    assert {(row["finding"], row["subject"]) for row in rows} == {
        ("not seen", "the hosts"),
        ("not seen", "guests of cell1"),
        ("not seen", "records of cell1"),
        ("not seen", "the view of one"),
    }


def test_a_finding_outweighs_what_could_not_be_looked_at(around: Around) -> None:
    around.serve(placement=around.placement, conductor=Conductor())
    around.placement.audits = [leak()]
    status, rows = around.types("audit", "--timeout", "0.3", "--settle", "0.01")
    assert (status, rows[0]["finding"]) == (1, "leaked")


def test_an_audit_that_does_not_come_to_its_end_has_found_nothing(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    around.serve()
    status, said = around.types("audit", "-c", "findings")
    assert (status, "No recognized column names in ['findings']" in said) == (2, True)

    def broken(_clients: object, _state: object) -> None:
        raise KeyError("holders")

    monkeypatch.setattr("moorage.cli.audit.findings.judge", broken)
    assert around.types("audit")[0] == 2


def test_an_audit_that_cannot_begin_has_looked_at_nothing(around: Around) -> None:
    around.file.write_text("[DEFAULT]\ntransport_url = nonsense://\n")
    assert around.types("audit")[0] == 2
