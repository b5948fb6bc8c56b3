"""A plug-in that does not come to an end costs its request some seconds, and the scheduler nothing: it is named."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scheduler_builders import select
from scheduler_rig import Rig
from stevedore import ExtensionManager

from moorage import errors, ids, options
from moorage.bus import Bus
from moorage.messages import ListHosts, ShowPolicy
from scheduler.service import SchedulerService

_MODULE = """
import threading
import time
from moorage.plugin import Filter

GO_ON = threading.Event()
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
        return True
"""


class Stage:
    def __init__(self, folder: Path, name: str) -> None:
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self.rig.add_hosts([1, 2])
        self.name = name
        self.folder = folder
        self.url = f"inproc://{ids.fresh()}/"
        self.service: SchedulerService | None = None

    def start(self, **settings: str) -> Bus:
        lines = {"enabled_filters": "compute, resources, hung", "plugin_timeout": "0.7", **settings}
        file = self.folder / "moorage.conf"
        file.write_text(
            f"[DEFAULT]\ntransport_url = {self.url}\n[database]\nconnection = {self.rig.url}\n[rpc]\nthreads = 2\n"
            "[scheduler]\n" + "\n".join(f"{name} = {value}" for name, value in lines.items())
        )
        conf = options.new(files=[file])
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
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})
    name = f"moorage_hung_{tmp_path.name.replace('-', '_')}"
    info = tmp_path / "package" / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "package" / f"{name}.py").write_text(_MODULE)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[moorage.filters]\nhung = {name}:Hung\n")
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    stage = Stage(tmp_path, name)
    yield stage
    stage.close()


def hanging(request_id: str, how: str = "waits") -> Any:
    return select(request_id, scheduler_hints={"hang": how})


@pytest.mark.parametrize("how", ["waits", "loops"])
def test_a_plugin_that_never_answers_is_a_typed_error_that_names_it(stage: Stage, how: str) -> None:
    scheduler = stage.start().client("scheduler")
    with pytest.raises(errors.SlowPlugin, match=r"The filter hung has not answered within 0.7 seconds"):
        scheduler.call(hanging("r1", how))
    policy = scheduler.call(ShowPolicy())
    assert policy.broken == {"filter hung": 1}
    assert policy.breaking == ("filter hung",)
    assert stage.rig.audit().holders == (), "a decision that was given up has claimed"
    assert len(scheduler.call(select("r2"))) == 1


def test_while_several_threads_hang_in_a_plugin_it_is_not_asked_and_everything_else_is_answered(stage: Stage) -> None:
    client = stage.start().client("scheduler")

    def refused(number: int) -> float:
        begun = time.monotonic()
        with pytest.raises(errors.SlowPlugin):
            client.call(hanging(f"r{number}"))
        return time.monotonic() - begun

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(refused, range(6)))
    assert len(__import__(stage.name).ASKED) <= 5
    assert refused(99) < 0.6, "a plug-in in which threads hang was waited for"
    assert len(client.call(ListHosts())) == 2
    # Whoever needs the plug-in is refused, until a thread comes back.
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


def test_with_skip_the_request_is_decided_without_it(stage: Stage) -> None:
    scheduler = stage.start(broken_plugin="skip").client("scheduler")
    assert len(scheduler.call(hanging("r1"))) == 1
    assert scheduler.call(ShowPolicy()).breaking == ()
    assert scheduler.call(ShowPolicy()).broken["filter hung"] >= 1


def test_a_plugin_that_takes_its_time_is_shown_with_the_longest(stage: Stage) -> None:
    scheduler = stage.start(plugin_timeout="20").client("scheduler")
    scheduler.call(hanging("r1", "dawdles"))
    [(plugin, seconds)] = scheduler.call(ShowPolicy()).slow.items()
    assert (plugin, seconds >= 0.6) == ("filter hung", True)


def test_without_a_limit_a_plugin_may_take_as_long_as_it_likes(stage: Stage) -> None:
    bus = stage.start(plugin_timeout="0")
    answered: list[Any] = []
    asking = threading.Thread(target=lambda: answered.append(bus.client("scheduler").call(hanging("r1"))))
    asking.start()
    asking.join(1.0)
    assert not answered
    __import__(stage.name).GO_ON.set()
    asking.join(20)
    assert len(answered) == 1
