"""A super conductor beside a cell that only keeps records."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conductor_builders import CELL_1, FakeAgent, FakeScheduler
from moving_world import MovingPlacement, MovingWorld

from conductor.schema import CONDUCTOR
from moorage import ids, options
from moorage.bus import Bus
from moorage.database import Database


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    url = f"sqlite:///{tmp_path}/records.sqlite"
    database = Database(url, "test")
    CONDUCTOR.upgrade(database)
    database.close()
    transport = {"transport_url": f"inproc://{ids.fresh()}/"}
    conf = options.new(
        {
            "DEFAULT": transport,
            "database": {"connection": url},
            # A third of it is what a cell has to answer in: more than a busy machine takes.
            "rpc": {"call_timeout": 9.0},
            "conductor": {"report_interval": 0.2, "housekeeping_interval": 0.2, "max_unanswered_retries": 2},
        }
    )
    bus = Bus(options.new({"DEFAULT": transport, "rpc": {"call_timeout": 60.0}}))
    placement = MovingPlacement()
    world = MovingWorld(conf, bus, placement, FakeScheduler(placement), FakeAgent(bus))
    world.serve("placement", placement)
    world.serve("scheduler", world.scheduler)
    world.serve(f"conductor.{CELL_1.uuid}", world.cell)
    world.start("super")
    yield world
    world.agent.threads.shutdown()
    for name in list(world.services):
        world.stop(name)
    bus.close()
