"""Test that one audit runs at a time, and that its findings are kept for all viewers."""

import threading

import pytest
from support.moorage.clock import Clock

from dashboard.audits import Audits
from harness.waiting import wait_until
from moorage import errors
from moorage.cli.audit.command import Examination
from moorage.cli.audit.findings import CloudState, Finding

FOUND = Examination(
    [
        Finding("leaked", "c1", "no such instance", instance_uuid="i1"),
        Finding("doubled", "i2", "has active guests on a, b"),
        Finding("drifted", "p1", "VCPU"),
    ],
    {"the view of s2": "no answer"},
    CloudState(),
)


def ended(audits: Audits) -> dict[str, object]:
    wait_until(lambda: audits.state()["state"] != "running", "the audit to end")
    return audits.state()


def test_before_the_first_audit_there_is_none() -> None:
    assert Audits(lambda: FOUND).state()["state"] == "none"


def test_findings_and_parts_without_an_answer_are_kept() -> None:
    go_on = threading.Event()

    def audit() -> Examination:
        assert go_on.wait(30)
        return FOUND

    audits = Audits(audit)
    assert audits.begin()["state"] == "running"

    go_on.set()
    state = ended(audits)
    assert state["findings"] == [
        {"kind": "leaked", "subject": "c1", "instance": "i1", "detail": "no such instance"},
        {"kind": "doubled", "subject": "i2", "instance": "i2", "detail": "has active guests on a, b"},
        {"kind": "drifted", "subject": "p1", "instance": None, "detail": "VCPU"},
    ]
    assert state["unseen"] == {"the view of s2": "no answer"}


def test_no_audit_begins_while_one_runs_or_soon_after_it() -> None:
    clock, go_on, begun = Clock(100.0), threading.Event(), list[int]()

    def audit() -> Examination:
        begun.append(1)
        assert go_on.wait(30)
        return FOUND

    audits = Audits(audit, clock=clock)
    audits.begin()
    audits.begin()
    go_on.set()
    ended(audits)
    clock.now = 129.0
    assert audits.begin()["state"] == "done"
    assert len(begun) == 1
    clock.now = 131.0
    audits.begin()
    ended(audits)
    assert len(begun) == 2


def test_an_audit_may_be_repeated_although_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, begun = Clock(100.0), list[int]()

    def audit() -> Examination:
        begun.append(1)
        return FOUND

    audits = Audits(audit, clock=clock)
    monkeypatch.setattr("time.time", lambda: 10_000.0)
    audits.begin()
    ended(audits)
    monkeypatch.setattr("time.time", lambda: 6_400.0)
    clock.now = 131.0
    audits.begin()
    ended(audits)
    assert len(begun) == 2


def test_an_audit_that_fails_says_why_and_may_be_repeated_at_once() -> None:
    faults: list[Exception] = [errors.BusUnavailable(reason="gone"), ZeroDivisionError()]

    def audit() -> Examination:
        if faults:
            raise faults.pop(0)
        return FOUND

    audits = Audits(audit)
    audits.begin()
    assert "gone" in str(ended(audits)["reason"])
    audits.begin()
    assert "ZeroDivisionError" in str(ended(audits)["reason"])
    audits.begin()
    assert ended(audits)["state"] == "done"


def test_an_audit_may_be_repeated_if_its_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    audits = Audits(lambda: FOUND)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            audits.begin()
    assert audits.state()["state"] == "none"
    audits.stop(1.0)
    audits.begin()
    assert ended(audits)["state"] == "done"
