"""Test that a plug-in which never answers fails its request by name after a time-out, and no other request."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.processes.stopwatch import Stopwatch
from support.scheduler.builders import select
from support.scheduler.installed_packages import Install
from support.scheduler.operator import Operator, report_scheduler
from support.scheduler.rig import Rig

from harness.waiting import wait_until
from moorage import errors, ids, metrics
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import ListHosts, ShowPolicy
from scheduler.service import SchedulerService

#: Seconds that a plug-in may take: more than one needs on a busy machine.
LIMIT = "1.5"

_MODULE = """
import threading
import time
from moorage.plugin import Filter, Weigher

GO_ON = threading.Event()
CLOSED = threading.Event()
ASKED = []

class Hung(Filter):
    reason = "is in the wrong rack"

    def passes(self, host, request):
        hint = request.scheduler_hints.get("hang")
        if hint == "waits":
            ASKED.append(host.service_host)
            GO_ON.wait()
        if hint == "loops":
            while True:
                try:
                    sum(range(100))
                except Exception:
                    pass
        if hint == "dawdles":
            time.sleep(0.6)
        return not CLOSED.is_set()

class Building(Hung):
    def __init__(self, settings):
        super().__init__(settings)
        ASKED.append("built")
        GO_ON.wait()

class Counting(Weigher):
    def __init__(self, settings):
        super().__init__(settings)
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                pass

    def weigh(self, host, request):
        return 0.0
"""
_CONNECTING = "import time\nwhile True:\n    time.sleep(0.001)\n"


class Stage:
    """A scheduler with plug-ins that hang if a hint of the request says so."""

    def __init__(self, folder: Path, name: str) -> None:
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self.rig.add_hosts([1, 2])
        self.name = name
        self.folder = folder
        self.url = f"inproc://{ids.fresh()}/"
        self.service: SchedulerService | None = None

    def write(self, **settings: str) -> Path:
        lines = {"enabled_filters": "compute, resources, hung", "plugin_timeout": LIMIT, **settings}
        file = self.folder / "moorage.conf"
        file.write_text(
            f"[DEFAULT]\ntransport_url = {self.url}\n[database]\nconnection = {self.rig.url}\n[rpc]\nthreads = 2\n"
            "[scheduler]\n" + "\n".join(f"{name} = {value}" for name, value in lines.items())
        )
        return file

    def start(self, **settings: str) -> Bus:
        conf = options.new(files=[self.write(**settings)])
        self.service = SchedulerService(conf, "one")
        self.service.start()
        self.bus = Bus(conf)
        return self.bus

    def close(self) -> None:
        __import__(self.name).GO_ON.set()
        if self.service is not None:
            self.bus.close()
            self.service.stop()
        self.rig.close()
        end = time.monotonic() + 20
        while any(thread.name == "decision" for thread in threading.enumerate()):
            assert time.monotonic() < end, "a thread is left that no plug-in holds any more"
            time.sleep(0.02)


@pytest.fixture
def stage(tmp_path: Path, install: Install) -> Iterator[Stage]:
    name = f"moorage_hung_{tmp_path.name.replace('-', '_')}"
    install(
        name,
        _MODULE,
        filters={"hung": f"{name}:Hung", "dawdling": f"{name}:Hung", "building": f"{name}:Building"},
        weighers={"counting": f"{name}:Counting"},
    )
    stage = Stage(tmp_path, name)
    yield stage
    stage.close()


def failures() -> float:
    """Return the failures of the filter that the alert for broken plug-ins goes by."""
    return (
        metrics.REGISTRY.get_sample_value("moorage_plugin_failures_total", {"kind": "filter", "plugin": "hung"}) or 0.0
    )


def hanging(request_id: str, how: str = "waits") -> Any:
    return select(request_id, scheduler_hints={"hang": how})


@pytest.mark.parametrize("how", ["waits", "loops"])
def test_a_request_whose_plugin_never_answers_fails_with_the_name_of_the_plugin(stage: Stage, how: str) -> None:
    scheduler = stage.start().client("scheduler")
    before = failures()
    with pytest.raises(errors.SlowPlugin, match=rf"The filter hung has not answered within {LIMIT} seconds"):
        scheduler.call(hanging("r1", how))
    policy = scheduler.call(ShowPolicy())
    assert policy.broken == {"filter hung": 1}
    assert failures() == before + 1
    assert policy.breaking == ("filter hung",)
    assert stage.rig.audit().holders == (), "a failed decision has claimed"
    assert len(scheduler.call(select("r2"))) == 1


def test_a_plugin_in_which_threads_hang_is_not_called_and_other_requests_are_answered(stage: Stage) -> None:
    client = stage.start().client("scheduler")

    def refused(number: int) -> float:
        watch = Stopwatch()
        with pytest.raises(errors.SlowPlugin):
            client.call(hanging(f"r{number}"))
        return watch.seconds

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(refused, range(6)))
    assert len(__import__(stage.name).ASKED) <= 5
    before = failures()
    assert refused(99) < float(LIMIT) - 0.1, "the scheduler has waited for a plug-in in which threads hang"
    assert failures() == before + 1
    assert len(client.call(ListHosts())) == 2
    # Requests that need the plug-in fail until one of its threads has returned.
    with pytest.raises(errors.SlowPlugin):
        client.call(select("r100"))
    __import__(stage.name).GO_ON.set()
    end = time.monotonic() + 20
    while True:
        try:
            assert len(client.call(select("r101"))) == 1
        except errors.SlowPlugin:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


def test_with_skip_a_request_is_decided_without_the_plugin(stage: Stage) -> None:
    scheduler = stage.start(broken_plugin="skip").client("scheduler")
    before = failures()
    assert len(scheduler.call(hanging("r1"))) == 1
    assert scheduler.call(ShowPolicy()).breaking == ()
    # One time-out is one failure, although the decision ran again.
    assert scheduler.call(ShowPolicy()).broken == {"filter hung": 1}
    assert failures() == before + 1


def test_a_slow_plugin_is_shown_with_its_longest_time(stage: Stage) -> None:
    scheduler = stage.start(plugin_timeout="20").client("scheduler")
    scheduler.call(hanging("r1", "dawdles"))
    [(plugin, seconds)] = scheduler.call(ShowPolicy()).slow.items()
    assert (plugin, seconds >= 0.6) == ("filter hung", True)


def plugins_in_status(stage: Stage, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Return the state and the detail of each line for plug-ins that an operator is shown."""
    report_scheduler(stage.bus, "one")
    _status, lines, _said = Operator(stage.folder / "moorage.conf", capsys, stage.rig).runs("status", "--timeout", "5")
    return [(line["state"], line["detail"]) for line in lines if line["part"] == "plug-ins of one"]


def test_the_status_is_ok_with_slow_plugins_and_shows_the_longest_time_of_each(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    filters = "compute, resources, hung, dawdling"
    scheduler = stage.start(plugin_timeout="20", enabled_filters=filters).client("scheduler")
    scheduler.call(select("r1"))
    assert plugins_in_status(stage, capsys) == []
    scheduler.call(hanging("r2", "dawdles"))
    slow = scheduler.call(ShowPolicy()).slow
    shown = f"filter dawdling {slow['filter dawdling']:.1f} s, filter hung {slow['filter hung']:.1f} s"
    assert plugins_in_status(stage, capsys) == [("ok", f"slowest answers: {shown}")]


def test_the_status_shows_how_long_the_scheduler_waited_for_a_plugin_that_never_answered(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = stage.start().client("scheduler")
    with pytest.raises(errors.SlowPlugin):
        scheduler.call(hanging("r1"))
    since = f"broken since it was started: filter hung 1 time(s); slowest answers: filter hung {LIMIT} s"
    broke = "no request has been decided since it broke: filter hung"
    assert plugins_in_status(stage, capsys) == [("wrong", f"{broke}; {since}")]
    scheduler.call(select("r2"))
    assert plugins_in_status(stage, capsys) == [("ok", since)]


def test_without_a_timeout_a_plugin_may_take_any_time(stage: Stage) -> None:
    bus = stage.start(plugin_timeout="0")
    answered: list[Any] = []
    asking = threading.Thread(target=lambda: answered.append(bus.client("scheduler").call(hanging("r1"))))
    asking.start()
    asking.join(1.0)
    assert not answered
    __import__(stage.name).GO_ON.set()
    asking.join(20)
    assert len(answered) == 1


@pytest.mark.parametrize("limit", [LIMIT, "0"])
def test_a_plugin_is_called_for_all_hosts_at_each_decision(stage: Stage, limit: str) -> None:
    scheduler = stage.start(plugin_timeout=limit).client("scheduler")
    scheduler.call(select("r1"))
    __import__(stage.name).CLOSED.set()
    with pytest.raises(errors.NoValidHost):
        scheduler.call(select("r2"))
    __import__(stage.name).CLOSED.clear()
    assert len(scheduler.call(select("r3"))) == 1


@pytest.mark.parametrize(
    ("settings", "plugin"),
    [
        ({"enabled_filters": "compute, building"}, "filter building"),
        ({"enabled_weighers": "ram, counting"}, "weigher counting"),
        ({"enabled_filters": "compute, connecting"}, "filter connecting"),
    ],
)
def test_a_scheduler_with_a_plugin_that_cannot_be_created_in_time_does_not_start_and_names_it(
    stage: Stage, install: Install, settings: dict[str, str], plugin: str
) -> None:
    name = f"{stage.name}_connecting"
    install(name, _CONNECTING, filters={"connecting": f"{name}:Rack"})
    conf = options.new(files=[stage.write(**settings)])
    service = SchedulerService(conf, "one")
    with pytest.raises(errors.ConfigurationError, match=rf"the {plugin} .* has not ended within {LIMIT} s"):
        service.start()
    service.stop()


def test_a_scheduler_starts_although_a_disabled_plugin_cannot_be_imported_in_time(
    stage: Stage, install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{stage.name}_connecting"
    install(name, _CONNECTING, filters={"connecting": f"{name}:Rack"})
    scheduler = stage.start().client("scheduler")
    assert len(scheduler.call(select("r1"))) == 1
    assert "names of the plug-ins' options are not checked: " in caplog.text
    assert "the filter connecting" in caplog.text


def test_a_reload_with_a_plugin_that_cannot_be_created_in_time_keeps_the_old_policy(stage: Stage) -> None:
    scheduler = stage.start(plugin_timeout="20").client("scheduler")
    service = stage.service
    assert service is not None
    before = scheduler.call(ShowPolicy())
    stage.write(plugin_timeout="5", enabled_filters="compute, building")
    asked = __import__(stage.name).ASKED
    reloading = threading.Thread(target=service.reload)
    reloading.start()
    wait_until(lambda: asked == ["built"])
    # The scheduler answers while the reload waits for the constructor.
    assert scheduler.call(ShowPolicy()).refused is None
    assert reloading.is_alive()
    reloading.join(20)
    policy = scheduler.call(ShowPolicy())
    assert policy.fingerprint == before.fingerprint
    assert policy.refused is not None
    assert "the filter building" in policy.refused.reason
    assert policy.broken == {}, "a plug-in that is not in the policy is counted as broken"
    assert len(scheduler.call(select("r1"))) == 1
