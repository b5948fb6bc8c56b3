"""What a cell knows of its hosts, and passes on."""

import time

from conductor_builders import CELL_1, World, report, wait_until

from moorage import ids
from moorage.messages import ReportHostsInCell


def test_descriptions_are_passed_on_and_again_when_they_change_and_who_is_alive_always(world: World) -> None:
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")

    def told() -> list[tuple[str, str]]:
        return [(host.service_host, host.availability_zone) for sent in world.scheduler.reports for host in sent.hosts]

    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b"))))
    wait_until(lambda: told() == [("a", "nova"), ("b", "nova")])
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"), report("b", "west"))))
    wait_until(lambda: told()[2:] == [("b", "west")])
    world.scheduler.reports.clear()
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("b",)))
    wait_until(lambda: any(sent.alive == ("b",) for sent in world.scheduler.reports))

    time.sleep(0.5)
    silent = len(world.scheduler.reports)
    time.sleep(0.5)
    assert len(world.scheduler.reports) == silent, "hosts that were not seen are not reported as alive"
    assert set(told()) <= {("b", "west")}, "only a description whose acknowledgement was under way is told once more"


def test_what_no_scheduler_has_heard_is_told_when_one_is_back(world: World) -> None:
    world.servers.pop("scheduler").stop()
    cell = world.bus.client(f"conductor.{CELL_1.uuid}")
    cell.call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report("a"),)))
    time.sleep(0.5)

    world.serve("scheduler", world.scheduler)

    wait_until(lambda: any(sent.hosts for sent in world.scheduler.reports))
