"""Whole schedulers on an in-process bus and an SQLite file."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from moorage import ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import SelectDestinations
from scheduler.service import SchedulerService
from support.scheduler.rig import Rig


class Surroundings:
    """A store, a bus, and schedulers on them."""

    def __init__(self, folder: Path) -> None:
        self._closing = ExitStack()
        self.rig = Rig(f"sqlite:///{folder}/main.sqlite")
        self._closing.callback(self.rig.close)
        self.transport_url = f"inproc://{ids.fresh()}/"
        self.bus = Bus(self.configuration())
        self._closing.callback(self.bus.close)

    def close(self) -> None:
        self._closing.close()

    def configuration(self, **settings: Any) -> Any:
        return options.new(
            {
                "DEFAULT": {"transport_url": self.transport_url},
                "database": {"connection": self.rig.url},
                "scheduler": settings,
            }
        )

    def start(self, name: str = "one", **settings: Any) -> SchedulerService:
        service = SchedulerService(self.configuration(**settings), name)
        self._closing.callback(service.stop)
        service.start()
        return service

    def select(self, message: SelectDestinations) -> Any:
        return self.bus.client("scheduler", timeout=20.0).call(message)
