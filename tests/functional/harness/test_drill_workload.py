"""Test the clients that work on a cloud during a drill."""

import threading

import pytest

from harness.cloud import CloudSpec, RunningCloud
from harness.drills.workload import Workload


def test_clients_that_have_begun_stop_if_another_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused_to_the_second(thread: threading.Thread) -> None:
        if thread.name == "client-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    with RunningCloud(CloudSpec(hosts=1)) as cloud:
        monkeypatch.setattr(threading.Thread, "start", refused_to_the_second)
        workload = Workload(cloud, clients=2, seed=0, moves=False)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            workload.__enter__()
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("client-")]
        workload._ended.set()
        assert left == []
