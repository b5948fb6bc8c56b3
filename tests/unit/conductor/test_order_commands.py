"""Test what the commands that send orders print if an order is refused or not answered."""

import socket
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from conductor.commands.instance import InstanceDelete
from conductor.commands.move import InstanceEvacuate, InstanceLiveMigrate, InstanceMigrate, InstanceRevert
from conductor.commands.order import OrderCommand
from moorage import errors, ids
from moorage.cli.command import Table
from moorage.cli.shell import Shell, main
from moorage.messages import EnsureTrait, Ordered, ShelveInstance, ShowInstance, ShowMigration
from moorage.model import Flavor, Instance, Migration

LOST = errors.BusUnavailable(reason="the connection was lost")
SILENT = errors.NoReply(topic="conductor", method="build_instances", seconds=1.0)
NOBODY = errors.NotServed(topic="conductor", service="`moorage conductor`")
LATE = errors.DeadlineExceeded(point="before the COMMIT")
UNDER_WAY = errors.RequestInProgress(request_id="derived")
FAULT = errors.InternalError(kind="KeyError")
GIVEN = Namespace(request_id="r", formatter="value")


class Broken:
    """A client whose calls fail."""

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def require(self) -> None:
        if isinstance(self.fault, errors.NotServed):
            raise self.fault

    def call(self, _message: object) -> None:
        raise self.fault


class Answering:
    """A client whose calls are answered."""

    def require(self) -> None:
        pass

    def call(self, _message: object) -> None:
        pass


class Ordering(OrderCommand):
    """A command that gives one order."""

    fault: BaseException

    def client(self, topic: str) -> Any:
        assert topic == "conductor"
        return Broken(self.fault)

    def take_action(self, parsed_args: Namespace) -> Table:
        self.named(parsed_args)
        self.order(EnsureTrait(request_id=ids.fresh(), name="CUSTOM_A"))
        return (), []


class Interrupted(Ordering):
    """A command that ends early after its order was answered."""

    def client(self, topic: str) -> Any:
        return Answering()

    def take_action(self, parsed_args: Namespace) -> Table:
        super().take_action(parsed_args)
        raise self.fault


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


@pytest.mark.parametrize(
    ("fault", "is_unknown"),
    [
        (LOST, True),
        (SILENT, True),
        (LATE, True),
        (UNDER_WAY, True),
        (FAULT, True),
        (KeyboardInterrupt(), True),
        (NOBODY, False),
    ],
)
def test_a_command_explains_how_to_repeat_an_order_only_if_it_may_have_arrived(
    fault: BaseException, caplog: pytest.LogCaptureFixture, *, is_unknown: bool
) -> None:
    command = Ordering(Shell(), None, "instance build")
    command.fault = fault
    with pytest.raises(type(fault)):
        command.run(GIVEN)
    assert ("Repeat it with --request-id r" in caplog.text) is is_unknown
    assert ("The order was not sent" in caplog.text) is not is_unknown


@pytest.mark.parametrize(
    "fault", [SILENT, NOBODY, KeyboardInterrupt(), ValueError()], ids=lambda one: type(one).__name__
)
def test_a_command_that_ends_early_after_its_order_explains_how_to_repeat_it(
    fault: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    command = Interrupted(Shell(), None, "instance build")
    command.fault = fault
    with pytest.raises(type(fault)):
        command.run(GIVEN)
    assert "Repeat it with --request-id r" in caplog.text


def test_a_refused_order_is_not_to_be_repeated(caplog: pytest.LogCaptureFixture) -> None:
    command = Ordering(Shell(), None, "instance build")
    command.fault = errors.InvalidState(reason="the instance is building")
    with pytest.raises(errors.InvalidState):
        command.run(GIVEN)
    assert "Repeat it" not in caplog.text


@pytest.mark.parametrize("kind", [errors.RequestIdReused, errors.RequestInProgress])
def test_an_error_about_the_id_of_an_order_names_the_id_that_the_operator_has_given(
    kind: type[errors.MoorageError],
) -> None:
    command = Ordering(Shell(), None, "instance migrate")
    command.fault = kind(request_id=ids.derived("r", "order", "a"))
    with pytest.raises(kind, match=r"request( id)? r "):
        command.run(GIVEN)


@pytest.mark.parametrize(
    "command",
    [
        "build --vcpus 1 --memory-mb 1",
        f"shelve {ids.derived('test', 'one')}",
        f"delete {ids.derived('test', 'one')}",
        "delete one",
        "migrate one",
        "detach-resource one _port1",
    ],
)
def test_an_order_to_a_broker_that_refuses_the_connection_was_certainly_not_sent(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = rabbit://u:p@127.0.0.1:{port}/\n")
    assert main(["--config-file", str(file), "instance", *command.split()]) == 1
    error = capsys.readouterr().err
    assert "The order was not sent" in error
    assert "The message bus cannot be reached" in error
    assert "unknown" not in error


def test_an_order_whose_instance_cannot_be_read_first_was_certainly_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    command = Ordering(Shell(), None, "instance shelve")
    command.named(Namespace(request_id="r"))
    command.fault = SILENT
    with pytest.raises(errors.NoReply):
        command.order(ShelveInstance(request_id="r", instance_uuid=ids.fresh()))
    assert caplog.messages == ["The order was not sent"]


@pytest.mark.parametrize(("fault", "is_unknown"), [(SILENT, True), (NOBODY, False)])
def test_a_deletion_that_is_not_answered_is_to_be_repeated_only_if_it_may_have_arrived(
    fault: errors.MoorageError, caplog: pytest.LogCaptureFixture, *, is_unknown: bool
) -> None:
    class Deleting(InstanceDelete):
        def client(self, topic: str) -> Any:
            assert topic == "conductor"
            return Broken(fault)

    with pytest.raises(type(fault)):
        Deleting(Shell(), None, "instance delete").run(Namespace(uuid=[ids.fresh()], wait=False, formatter="value"))

    sent = "An order was sent and may be recorded. Repeat the command"
    assert caplog.messages == [sent if is_unknown else "The order was not sent"]


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


@pytest.mark.parametrize("command", [InstanceLiveMigrate, InstanceEvacuate, InstanceMigrate])
def test_a_wait_for_a_confirmed_migration_has_failed_while_it_is_only_moved(command: type[Any]) -> None:
    moved = Migration(
        uuid=ids.fresh(),
        instance_uuid=ids.fresh(),
        kind="live-migration",
        state="moved",
        request_id="r",
        created_at=0.0,
        updated_at=0.0,
    )

    class Moving(command):  # type: ignore[misc]
        def client(self, _topic: str) -> Any:
            return SimpleNamespace(call=lambda _message: moved)

    moving = Moving(Shell(), None, "instance move")
    given = Namespace(wait=True, wait_timeout=0.0)

    moving.result(given, [moved.instance_uuid], [Ordered(migration_uuid=moved.uuid)])

    assert moving.failed is (command is not InstanceMigrate)


@pytest.mark.parametrize(("ends_as", "reverts"), [("moved", False), ("reverted", True)])
def test_a_wait_for_a_revert_ends_when_the_revert_is_given_up(
    ends_as: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, reverts: bool
) -> None:
    migration = Migration(uuid=ids.fresh(), instance_uuid=ids.fresh(), kind="resize", state="", reason="a: off")
    states = iter(["moved", "moved", "active" if reverts else "moved"])
    of_migration = iter(["reverting", "reverting", ends_as])

    def call(message: ShowInstance | ShowMigration) -> Instance | Migration:
        if isinstance(message, ShowMigration):
            assert message.uuid == migration.uuid
            return structs.replace(migration, state=next(of_migration))
        return Instance(
            uuid=migration.instance_uuid,
            project_id="p",
            user_id="u",
            flavor=Flavor(vcpus=1, memory_mb=1),
            state=next(states),
            migration_uuid=migration.uuid,
        )

    class Reverting(InstanceRevert):
        def client(self, _topic: str) -> Any:
            return SimpleNamespace(call=call)

    monkeypatch.setattr("conductor.commands.order._INTERVAL", 0.0)
    reverting = Reverting(Shell(), None, "instance revert")

    reverting.result(Namespace(wait=True, wait_timeout=600.0), [migration.instance_uuid], [])

    assert reverting.failed is not reverts
    assert ("is given up: a: off" in caplog.text) is not reverts
