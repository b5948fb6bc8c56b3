"""Makes the first start of each simulated scheduler fail halfway, for ``--load`` of the simulation's command."""

from harness.simulation.machine.kernel import KERNEL
from moorage import errors


def load() -> None:
    """Let the placement role of each scheduler refuse its first start, when other servers of it are on the bus."""
    # The simulation must replace clocks and threads before any module of the product is imported.
    from moorage.db.database import Database
    from placement_store import service
    from placement_store.db.names import sync

    have_failed = set[str]()

    def fails_once(database: Database) -> None:
        if (process := KERNEL.current.process) not in have_failed:
            have_failed.add(process)
            raise errors.Overloaded(reason="its first start is to fail")
        sync(database)

    service.sync = fails_once  # type: ignore[attr-defined]  # The service is to call this instead.
