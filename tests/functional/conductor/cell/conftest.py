"""A world with a super conductor and one cell, running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conductor.builders import CALL_TIMEOUT, CELL_1, FakeAgent, FakePlacement, FakeScheduler, World
from support.databases import migrated

from conductor.schema import CELL, CONDUCTOR
from moorage import ids
from moorage.bus.bus import Bus
from moorage.config import options


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    # On a busy machine answers are slow; a test about what is never answered does not wait so long.
    call_timeout = CALL_TIMEOUT if request.node.get_closest_marker("short_calls") else 20.0
    url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR, CELL)
    transport = {"transport_url": f"inproc://{ids.fresh()}/"}
    conf = options.new(
        {
            "DEFAULT": transport,
            "database": {"connection": url},
            "rpc": {"call_timeout": call_timeout},
            "conductor": {"report_interval": 0.2, "housekeeping_interval": 0.2, "max_unanswered_retries": 2},
        }
    )
    # Whoever looks on has patience: what is slow on a busy machine is no fault.
    bus = Bus(options.new({"DEFAULT": transport, "rpc": {"call_timeout": 60.0}}))
    placement = FakePlacement()
    world = World(conf, bus, placement, FakeScheduler(placement), FakeAgent(bus))
    world.serve("placement", placement)
    world.serve("scheduler", world.scheduler)
    world.serve(f"compute.{CELL_1.uuid}", world.agent, "agent")
    world.start("super")
    world.start("cell")
    yield world
    world.agent.hold.set()
    world.agent.released.set()
    world.agent.threads.shutdown()
    for name in list(world.services):
        world.stop(name)
    bus.close()
