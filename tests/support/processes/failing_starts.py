"""Makes the first start of each simulated scheduler fail halfway, for ``--load`` of the simulation's command."""

from harness.simulation.kernel import KERNEL
from moorage import errors


def load() -> None:
    """Let the placement role of each scheduler refuse its first start, when other servers of it are on the bus."""
    # The simulation must replace clocks and threads before any module of the product is imported.
    from placement_store import service

    sync, have_failed = service.sync, set[str]()

    def fails_once(database: object) -> None:
        if (process := KERNEL.current.process) not in have_failed:
            have_failed.add(process)
            raise errors.Overloaded(reason="its first start is to fail")
        sync(database)  # type: ignore[arg-type]

    service.sync = fails_once  # type: ignore[assignment]
