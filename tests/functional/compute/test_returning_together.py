"""Test hosts of one agent that return together."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from msgspec import structs
from support.compute.builders import HOST, HOSTS, NewStage, wait_until

from compute.fake.driver import FakeDriver
from moorage.messages import BuildFinished, ListEndedAttempts, ReturnHosts
from moorage.model import Guest


@pytest.mark.parametrize("method", ["guests", "unfinished", "stopped"])
def test_a_host_whose_guests_cannot_be_listed_delays_only_its_own_return(new_stage: NewStage, method: str) -> None:
    class Broken(FakeDriver):
        is_broken = True

        def list_of(self, name: str, host: str) -> Any:
            if self.is_broken and (name, host) == (method, HOST):
                raise OSError("its disk does not answer")
            return getattr(super(), name)(host)

        def guests(self, host: str) -> Sequence[Guest]:
            return self.list_of("guests", host)  # type: ignore[no-any-return]

        def unfinished(self, host: str) -> Collection[str]:
            return self.list_of("unfinished", host)  # type: ignore[no-any-return]

        def stopped(self, host: str) -> Collection[str]:
            return self.list_of("stopped", host)  # type: ignore[no-any-return]

    stage = new_stage(fake_driver={"stranger_guests": 3})

    driver = stage.start(Broken)

    wait_until(lambda: set(stage.cell.returned()) == set(HOSTS[1:]))
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 2)
    driver.is_broken = False
    wait_until(lambda: HOST in stage.cell.returned())
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 3)


@pytest.mark.parametrize("amount", [0, object()])
def test_a_host_whose_guests_are_refused_delays_only_its_own_return(new_stage: NewStage, amount: Any) -> None:
    class Odd(FakeDriver):
        is_odd = True

        def guests(self, host: str) -> Sequence[Guest]:
            found = super().guests(host)
            odd = self.is_odd and host == HOSTS[1]
            return [structs.replace(guest, resources={"VCPU": amount}) for guest in found] if odd else found

    stage = new_stage(fake_driver={"stranger_guests": 3})

    driver = stage.start(Odd)

    wait_until(lambda: set(stage.cell.returned()) == {HOSTS[0], HOSTS[2]})
    driver.is_odd = False
    wait_until(lambda: set(stage.cell.returned()) == set(HOSTS))


def test_hosts_with_more_guests_than_fit_into_one_message_return_in_several_messages(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute.returns._GUESTS_AT_ONCE", 4)
    # Only one report: the answer to a second one, if it is late, names hosts that have returned meanwhile.
    stage = new_stage(compute={"report_interval": 60}, fake_driver={"stranger_guests": 7})

    stage.start()

    wait_until(lambda: set(stage.cell.returned()) == set(HOSTS))
    assert [len(message.guests) for message in stage.cell.received(ReturnHosts)] == [3, 4]
    assert len(stage.cell.received(ListEndedAttempts)) == 1


@pytest.mark.parametrize("broken", [HOSTS[:1], HOSTS], ids=["one host", "all hosts"])
def test_a_host_of_which_the_driver_cannot_tell_whether_it_is_alive_delays_only_its_own_return(
    new_stage: NewStage, broken: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeDriver):
        is_broken = True
        asked = 0

        def is_alive(self, host: str) -> bool:
            self.asked += host == HOST
            if self.is_broken and host in broken:
                raise OSError("its board does not answer")
            return super().is_alive(host)

    stage = new_stage()
    driver = stage.start(Broken)

    wait_until(lambda: driver.asked > 1 and stage.cell.returning == set(broken))
    # One line for all hosts that have the same fault, with its traceback.
    lines = [record for record in caplog.records if record.getMessage().startswith("It is unknown whether")]
    assert {record.args[0] for record in lines if isinstance(record.args, tuple)} == {len(broken)}
    assert len(lines) <= driver.asked
    assert "its board does not answer" in caplog.text
    driver.is_broken = False
    wait_until(lambda: stage.cell.returning == set())


def test_a_host_of_which_the_driver_cannot_tell_whether_it_has_it_delays_only_its_own_return(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeDriver):
        is_broken = True

        def has_host(self, host: str) -> bool:
            if self.is_broken and host == HOST:
                raise OSError("its board does not answer")
            return super().has_host(host)

    stage = new_stage()

    driver = stage.start(Broken)

    wait_until(lambda: set(stage.cell.returned()) == set(HOSTS[1:]))
    assert "It is unknown whether 1 host(s) are this agent's" in caplog.text
    driver.is_broken = False
    wait_until(lambda: HOST in stage.cell.returned())
