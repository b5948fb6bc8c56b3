"""A client process that builds instances one after another, and functions that wait for answers and builds.

They are not in a test file, because a forked process imports this module by its name.
"""

import multiprocessing
import time
from pathlib import Path

from moorage import errors, ids
from moorage.bus.bus import Bus, Client
from moorage.config import options
from moorage.messages import BuildInstances, ShowInstance
from moorage.messages.wire import Message, R
from moorage.model import Flavor, Instance, RequestSpec

FLAVOR = Flavor(name="eighth", vcpus=2, memory_mb=4096, root_gb=20)
SPEC = RequestSpec(project_id="p", user_id="u", flavor=FLAVOR)


def call_until_answered(client: Client, message: Message[R], seconds: float = 120.0) -> R:
    """Repeat a call while a part of the cloud is unavailable or the request is in progress."""
    end = time.monotonic() + seconds
    while True:
        try:
            return client.call(message)
        except (errors.Unavailable, errors.TryAgain):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def build(conductor: Client, spec: RequestSpec = SPEC, seconds: float = 120.0) -> Instance:
    uuid = ids.fresh()
    conductor.call(BuildInstances(request_spec=spec, instance_uuids=(uuid,), request_id=ids.fresh()))
    return built(conductor, uuid, seconds)


def built(conductor: Client, uuid: str, seconds: float = 120.0) -> Instance:
    end = time.monotonic() + seconds
    while (instance := conductor.call(ShowInstance(instance_uuid=uuid))).state == "building":
        assert time.monotonic() < end, instance
        time.sleep(0.05)
    return instance


def ask_until_all_are_decided(
    config_file: str, count: int, answers: "multiprocessing.Queue[tuple[str, str | None]]"
) -> None:
    """Run one client process: build one instance after another, and repeat requests when others were faster."""
    bus = Bus(options.new(files=[Path(config_file)]))
    conductor = bus.client("conductor", timeout=60.0)
    for _ in range(count):
        while (instance := build(conductor)).state == "error" and instance.explanation is None:
            assert "other claims were faster" in (instance.reason or "").lower(), instance.reason
        removed = {f.name: f.removed for f in instance.explanation.filters} if instance.explanation else None
        answers.put((instance.state, None if removed is None else f"resources={removed['resources']}"))
    bus.close()
