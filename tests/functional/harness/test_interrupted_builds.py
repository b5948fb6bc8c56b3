"""Test the builds of the demo when the user interrupts them."""

from typing import Any

import pytest

from harness.cloud import CloudSpec, RunningCloud
from harness.commands import build_all
from moorage.bus.bus import Client
from moorage.messages import ShowInstance


class InterruptingClient:
    """A client that is interrupted when it first asks about an instance."""

    def __init__(self, client: Client, end: BaseException) -> None:
        self._client = client
        self._end = end
        self.states: list[str] = []

    def call(self, message: Any) -> Any:
        answer = self._client.call(message)
        if isinstance(message, ShowInstance):
            self.states.append(answer.state)
            if len(self.states) == 1:
                raise self._end
        return answer


class InterruptedCloud(RunningCloud):
    def __init__(self, plan: CloudSpec, end: BaseException) -> None:
        super().__init__(plan)
        self._end = end

    def client(self, topic: str, timeout: float | None = None, server: str | None = None) -> Any:
        self.asked = InterruptingClient(super().client(topic, timeout, server), self._end)
        return self.asked


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_build_ends_before_the_cloud_is_stopped(end: BaseException) -> None:
    plan = CloudSpec(hosts=2, settings={"fake_driver": {"spawn_seconds": 2.0}})
    with InterruptedCloud(plan, end) as cloud:
        with pytest.raises(type(end)):
            list(build_all(cloud, 1))
        assert (cloud.asked.states[0], cloud.asked.states[-1]) == ("building", "active")
