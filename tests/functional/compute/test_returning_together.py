"""Hosts of one agent that return together: what holds one of them up, and how many guests one message names."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from support.compute.builders import HOST, Begin, FakeCell, wait_until

from compute.fake.driver import FakeDriver
from moorage.messages import BuildFinished, ListEndedAttempts, ReturnHosts
from moorage.model import Guest

HOSTS = ("host-0001", "host-0002", "host-0003")


def returned(cell: FakeCell) -> list[str]:
    """The hosts that have returned, in the order in which they have."""
    return [host for message in cell.said(ReturnHosts) for host in message.hosts]


@pytest.mark.parametrize("method", ["guests", "unfinished", "stopped"])
def test_a_host_of_which_the_driver_cannot_list_the_guests_holds_up_itself_alone(stage: Begin, method: str) -> None:
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

    now = stage(fake_driver={"stranger_guests": 3})

    driver = now.start(Broken)

    wait_until(lambda: set(returned(now.cell)) == set(HOSTS[1:]))
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)
    driver.is_broken = False
    wait_until(lambda: HOST in returned(now.cell))
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 3)


def test_hosts_with_more_guests_than_fit_into_one_message_return_by_several(
    stage: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compute.returns._GUESTS_AT_ONCE", 4)
    now = stage(fake_driver={"stranger_guests": 7})

    now.start()

    wait_until(lambda: set(returned(now.cell)) == set(HOSTS))
    said = now.cell.said(ReturnHosts)
    assert [len(message.guests) for message in said] == [3, 4]
    assert len(now.cell.said(ListEndedAttempts)) == 1
