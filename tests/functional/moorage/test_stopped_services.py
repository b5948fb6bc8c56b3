"""Test that a service which was stopped in order is shown as stopped, and that no command waits for it."""

from pathlib import Path

import pytest
from support.scheduler.operator import Operator, operator_of_hosts
from support.scheduler.rig import Rig

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.config import options
from moorage.messages import ListServices
from placement_store.service import PlacementService
from scheduler.service import SchedulerService

operator = operator_of_hosts


def states(operator: Operator) -> dict[tuple[str, str], str]:
    return {(line["kind"], line["name"]): line["state"] for line in operator.types("service", "list")}


def begun(operator: Operator, service: SchedulerService | PlacementService, *awaited: tuple[str, str]) -> None:
    service.start()
    wait_until(lambda: set(awaited) <= states(operator).keys(), "the reports of the service")


def test_a_stopped_scheduler_is_shown_as_stopped_and_no_command_waits_for_it(operator: Operator) -> None:
    conf = options.new(files=[operator.config_file])
    another = SchedulerService(conf, "two")
    begun(operator, another, ("scheduler", "two"), ("placement", "two"))
    another.stop()

    found = states(operator)
    assert (found["scheduler", "two"], found["placement", "two"]) == ("stopped", "stopped")
    _status, lines, _said = operator.runs("status", "--timeout", "5")
    [line] = [line for line in lines if line["part"] == "scheduler two"]
    assert (line["state"], line["detail"].split(" ago")[0].rstrip("0123456789. s")) == ("ok", "stopped in order")
    # The command would otherwise wait for the confirmation of this scheduler.
    assert operator.types("host", "set", "host1", "--disable", "--timeout", "5")["disabled"]
    again = SchedulerService(options.new(files=[operator.config_file]), "two")
    again.start()
    try:
        wait_until(lambda: states(operator)["scheduler", "two"] == "up", "the report of the scheduler")
    finally:
        again.stop()


def test_the_only_scheduler_reports_its_own_stop_to_the_placement_role_in_its_process(tmp_path: Path) -> None:
    rig = Rig(f"sqlite:///{tmp_path}/main.sqlite")
    service = SchedulerService(
        options.new({"DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"}, "database": {"connection": rig.url}}),
        "one",
    )
    service.start()
    wait_until(lambda: len(rig.placement.call(ListServices())) == 2, "the reports of both roles")
    service.stop()
    assert [known.stopped for known in rig.placement.call(ListServices())] == [True, True]
    rig.close()


def test_a_second_scheduler_of_a_name_does_not_start_and_does_not_affect_the_first(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    caplog.set_level("INFO")
    second = SchedulerService(options.new(files=[operator.config_file]), "one")
    with pytest.raises(errors.ServiceNameTaken, match="Another service named one answers on scheduler: stop it, or"):
        second.start()
    second.stop()
    assert "Reading all hosts" not in caplog.text
    assert [host["host"] for host in operator.types("host", "list")] == ["host1", "host2", "host3"]
