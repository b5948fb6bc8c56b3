"""A super conductor beside a cell that only keeps records."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.conductor.builders import CELL_1, FakeAgent, FakeScheduler
from support.conductor.moving_world import MovingPlacement, MovingWorld
from support.databases import migrated

from conductor.schema import CONDUCTOR
from moorage import ids
from moorage.bus.bus import Bus
from moorage.cli.shell import main
from moorage.config import options


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR)
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


@pytest.fixture
def moorage(world: MovingWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Return a function that runs a CLI command and returns its exit status and its output."""
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {world.conf.transport_url}\n[rpc]\ncall_timeout = 30\n")

    def run(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        status = main(["--config-file", str(file), *words, "-f", "json"])
        printed = capsys.readouterr().out
        return status, json.loads(printed) if printed else None

    handlers = list(logging.getLogger().handlers)
    yield run
    # A command logs to the standard error that it found, which is closed with the test.
    logging.getLogger().handlers[:] = handlers
