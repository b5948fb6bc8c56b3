"""Test what the commands that send orders print if an order is refused or not answered."""

from argparse import Namespace
from typing import Any

import pytest

from conductor.commands.order import OrderCommand
from moorage import errors, ids
from moorage.cli.command import Table
from moorage.cli.shell import Shell, main
from moorage.messages import EnsureTrait

LOST = errors.BusUnavailable(reason="the connection was lost")
SILENT = errors.NoReply(topic="conductor", method="build_instances", seconds=1.0)
NOBODY = errors.NotServed(topic="conductor", service="`moorage conductor`")


class Broken:
    """A client whose calls fail."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault

    def call(self, _message: object) -> None:
        raise self.fault


class Ordering(OrderCommand):
    """A command that gives one order."""

    fault: Exception

    def client(self, topic: str) -> Any:
        assert topic == "conductor"
        return Broken(self.fault)

    def take_action(self, parsed_args: Namespace) -> Table:
        self.named(parsed_args)
        self.order(EnsureTrait(request_id=ids.fresh(), name="CUSTOM_A"))
        return (), []


def test_a_refusal_for_one_of_several_servers_names_those_already_ordered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def order(uuid: str) -> str:
        if uuid == "c":
            raise errors.InvalidState(reason="instance c is building")
        return uuid

    command = Ordering(Shell(), None, "instance migrate")
    command.named(Namespace(request_id="r"))
    assert command.order_each(["a", "b"], order) == ["a", "b"]
    assert caplog.text == ""
    with pytest.raises(errors.InvalidState):
        command.order_each(["a", "b", "c", "d"], order)
    assert "Before that it was ordered for a, b; for what follows it was not" in caplog.text
    caplog.clear()
    with pytest.raises(errors.InvalidState):
        command.order_each(["c", "d"], order)
    assert caplog.text == ""


@pytest.mark.parametrize(("fault", "is_unknown"), [(LOST, True), (SILENT, True), (NOBODY, False)])
def test_a_command_explains_how_to_repeat_an_order_only_if_it_may_have_arrived(
    fault: Exception, caplog: pytest.LogCaptureFixture, *, is_unknown: bool
) -> None:
    command = Ordering(Shell(), None, "instance build")
    command.fault = fault
    with pytest.raises(type(fault)):
        command.take_action(Namespace(request_id="r"))
    assert ("Repeat it with --request-id r" in caplog.text) is is_unknown


@pytest.mark.parametrize("seconds", ["nan", "-1", "-inf", "inf", "soon"])
@pytest.mark.parametrize("command", [["instance", "delete", "one"], ["instance", "shelve", "one"]], ids=" ".join)
def test_a_wait_without_an_end_and_one_that_is_no_number_are_refused(
    capsys: pytest.CaptureFixture[str], command: list[str], seconds: str
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--wait", f"--wait-timeout={seconds}"])

    assert "argument --wait-timeout: must be a number of seconds from 0 to" in capsys.readouterr().err


def test_an_empty_request_id_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["instance", "shelve", "one", "--request-id", ""])

    assert "argument --request-id: is empty" in capsys.readouterr().err
