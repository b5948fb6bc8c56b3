"""Test `moorage status`, `service list` and `audit` with fake services on an in-process bus."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from msgspec import structs
from support.cli.fake_services import ATTEMPT, CELL, LOST, Conductor, OtherService, Placement, Surroundings

from harness.waiting import wait_until
from moorage import errors
from moorage.bus.bus import serves
from moorage.cli.status import intruders
from moorage.db.database import Database
from moorage.ids import derived
from moorage.messages import Recounted, RecountInventories
from moorage.model import Guest
from moorage.model.inspection import (
    Holder,
    InventoryFinding,
    StoreAudit,
    UnknownGuest,
)
from moorage.service.heartbeat import Heartbeat

GUIDE = Path(__file__).parents[3] / "docs/operator/health.md"


@pytest.fixture
def around(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Surroundings]:
    with ExitStack() as opened:
        yield Surroundings(tmp_path, capsys, opened)


def wrong(lines: list[Mapping[str, str]]) -> dict[str, str]:
    return {line["part"]: line["detail"] for line in lines if line["state"] != "ok"}


# --- moorage status -------------------------------------------------------------------------------------------------


def test_the_status_of_a_complete_cloud_is_ok_for_each_part(around: Surroundings) -> None:
    around.create_tables()
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


def test_the_status_names_each_part_that_is_away(around: Surroundings) -> None:
    around.serve(placement=around.placement)
    status, lines = around.types("status", "--timeout", "3")
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
    assert not Path(around.url.removeprefix("sqlite:///")).exists(), "the status must not create a database"


@pytest.mark.parametrize("is_served", [True, False])
def test_each_part_of_the_status_has_a_row_in_the_guide(around: Surroundings, is_served: bool) -> None:
    if is_served:
        around.create_tables()
        around.serve()
    _status, lines = around.types("status", "--timeout", "3")

    table = GUIDE.read_text().partition("| part | `wrong` means |\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall("`(.+?)`", row.split("|")[1])]
    patterns = [re.sub("CELL|NAME|…", ".+", name) for name in named]
    # The services have a row by kind and name.
    patterns += ["scheduler one", "cell conductor two of cell1"]
    assert [line["part"] for line in lines if not any(re.fullmatch(one, line["part"]) for one in patterns)] == []


def test_tables_of_another_version_are_wrong_with_the_command_to_run(around: Surroundings) -> None:
    with closing(Database(around.url, "main")) as database:
        database.write(lambda connection: connection.exec_driver_sql("CREATE TABLE t (x INTEGER)"))
    _status, lines = around.types("status", "--timeout", "0.1")
    assert "moorage db upgrade" in wrong(lines)["schema main"]


def test_silent_services_and_agents_are_wrong(around: Surroundings) -> None:
    around.create_tables()
    around.serve()
    around.placement.heard = around.scheduler.age = 31.0
    status, lines = around.types("status")
    assert status == 1
    assert wrong(lines) == {
        "cell conductor two of cell1": "version 9.9 on m2, heard of 31 s ago",
        "agents of cell1": "1 of 1 silent: agent1",
    }


def test_a_password_is_never_shown(around: Surroundings) -> None:
    for connection in (
        "mysql+pymysql://me:secret@127.0.0.1:1/x",
        "mysql+pymysql://127.0.0.1:1/x?user=me&password=secret",
        "nonsense:secret",
        "strange://me:secret@host/x",
    ):
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


def test_services_are_listed_with_the_agents_of_the_hosts(around: Surroundings) -> None:
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


def test_services_are_listed_without_agents_while_no_scheduler_answers(around: Surroundings) -> None:
    around.serve(placement=around.placement)
    status, lines = around.types("service", "list")
    assert (status, [line["kind"] for line in lines]) == (0, ["scheduler", "cell conductor"])


def test_a_service_reports_itself_until_it_stops_although_no_role_is_served_at_first(around: Surroundings) -> None:
    heartbeat = Heartbeat(around.conf, around.bus, "cell conductor", "two", CELL.uuid)
    heartbeat.start()
    around.serve(placement=around.placement)
    wait_until(lambda: len(around.placement.reported) >= 2, "two reports")
    heartbeat.stop()
    [report] = set(around.placement.reported)
    assert (report.kind, report.name, report.cell_uuid) == ("cell conductor", "two", CELL.uuid)
    assert report.version
    assert report.machine


# --- moorage audit --------------------------------------------------------------------------------------------------


def leak(uuid: str = LOST, kind: str = "INSTANCE", claim: str | None = LOST) -> StoreAudit:
    return StoreAudit(holders=(Holder(uuid=uuid, consumer_type=kind, claim_id=claim, allocations=2),))


def test_a_clean_cloud_has_no_findings(around: Surroundings) -> None:
    around.serve()
    assert around.types("audit") == (0, [])


def test_an_inconsistency_in_both_passes_is_a_finding(around: Surroundings) -> None:
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


def test_a_store_with_many_holders_is_read_in_parts(around: Surroundings) -> None:
    around.serve()
    other = derived("operator", "other")
    first = structs.replace(leak(), more_after=7)
    around.placement.audits = [first, leak(other), first, leak(other)]
    status, rows = around.types("audit", "--settle", "0.01")
    assert (status, [row["subject"] for row in rows]) == (1, [LOST, other])
    assert [message.after for message in around.placement.asked] == [0, 7, 0, 7]


def test_claims_that_are_read_in_parts_are_shown_the_oldest_first(around: Surroundings) -> None:
    around.serve()
    around.placement.claims = 12_000
    status, rows = around.types("claim", "list")
    assert status == 0
    ages = [row["age"] for row in rows]
    assert len({row["consumer"] for row in rows}) == 12_000
    assert ages == sorted(ages, reverse=True)


def test_an_inconsistency_only_in_the_first_pass_is_no_finding(around: Surroundings) -> None:
    around.serve()
    around.placement.audits = [leak(), StoreAudit()]
    assert around.types("audit", "--settle", "0.01") == (0, [])


def test_the_residue_of_a_deleted_instance_is_no_leak(around: Surroundings) -> None:
    around.serve()
    residue = Holder(uuid=ATTEMPT, consumer_type="RESIDUE", accepted_by=ATTEMPT, allocations=2)
    around.placement.audits = [StoreAudit(holders=(residue,))]
    assert around.types("audit", "--settle", "0.01") == (0, [])


def claims_of(owner: str) -> StoreAudit:
    uuids = [derived("operator", "other", number) for number in range(3)]
    return StoreAudit(
        holders=tuple(
            Holder(uuid=uuid, consumer_type="INSTANCE", claim_id=uuid, allocations=1, owner=owner) for uuid in uuids
        )
    )


def test_a_claim_of_another_service_is_leaked_only_if_that_service_says_so(around: Surroundings) -> None:
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


def test_claims_of_a_service_that_does_not_answer_are_not_leaked(around: Surroundings) -> None:
    around.serve()
    around.placement.audits = [claims_of("leases")]

    status, rows = around.types("audit", "--settle", "0.01")

    assert (status, [(row["finding"], row["subject"]) for row in rows]) == (2, [("not seen", "claims of leases")])


def test_an_audit_names_the_parts_that_it_could_not_read_and_is_not_clean(around: Surroundings) -> None:
    around.serve(placement=around.placement, conductor=Conductor())
    status, rows = around.types("audit", "--timeout", "3")
    assert status == 2
    assert {(row["finding"], row["subject"]) for row in rows} == {
        ("not seen", "the hosts"),
        ("not seen", "guests of cell1"),
        ("not seen", "records of cell1"),
        ("not seen", "the view of one"),
    }


def test_the_exit_status_of_a_finding_has_priority_over_unread_parts(around: Surroundings) -> None:
    around.serve(placement=around.placement, conductor=Conductor())
    around.placement.audits = [leak()]
    status, rows = around.types("audit", "--timeout", "3", "--settle", "0.01")
    assert (status, rows[0]["finding"]) == (1, "leaked")


class RecountingPlacement(Placement):
    """A placement role whose inventory of a provider has drifted, until it is recounted."""

    def __init__(self) -> None:
        super().__init__()
        provider = derived("operator", "node")
        drifted = InventoryFinding(provider_uuid=provider, resource_class="VCPU", capacity=8.0, used=2, allocated=1)
        self.audits = [StoreAudit(drifted=(drifted,))]

    @serves(RecountInventories)
    def recount_inventories(self, _message: RecountInventories) -> Recounted:
        self.audits = [StoreAudit()]
        return Recounted()


@pytest.mark.parametrize(("cell_answers", "outcome"), [(True, (0, "healed")), (False, (2, "not checked again"))])
def test_a_finding_is_healed_only_if_the_last_check_could_read_all_parts(
    around: Surroundings, outcome: tuple[int, str], *, cell_answers: bool
) -> None:
    topics = {"placement": RecountingPlacement(), "scheduler": around.scheduler, "conductor": Conductor()}
    around.serve(**topics, **({"cell": around.cell} if cell_answers else {}))
    status, rows = around.types("audit", "--timeout", "3", "--settle", "0.01", "--heal", "--apply")
    assert (status, rows[0]["remedy"]) == outcome
    assert rows[0]["finding"] == "drifted"


def test_an_audit_that_fails_has_no_findings(around: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    around.serve()
    status, said = around.types("audit", "-c", "findings")
    assert (status, "No recognized column names in ['findings']" in said) == (2, True)

    def broken(_clients: object, _state: object) -> None:
        raise KeyError("holders")

    monkeypatch.setattr("moorage.cli.audit.findings.judge", broken)
    assert around.types("audit")[0] == 2


def test_an_audit_that_cannot_begin_ends_with_2(around: Surroundings) -> None:
    around.file.write_text("[DEFAULT]\ntransport_url = nonsense://\n")
    assert around.types("audit")[0] == 2
