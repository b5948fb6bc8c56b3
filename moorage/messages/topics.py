"""The topics of the buses, each as a class that its messages inherit."""


class ToPlacement:
    """Served by the placement role, on the main bus."""

    __slots__ = ()
    topic = "placement"


class ToScheduler:
    """Served by the schedulers, on the main bus."""

    __slots__ = ()
    topic = "scheduler"


class ToConductor:
    """Served by the super conductor, on the main bus."""

    __slots__ = ()
    topic = "conductor"


class ToCell:
    """Served by the conductors of a cell, on the cell's bus, where the topic is `conductor.<cell uuid>`."""

    __slots__ = ()
    topic = "conductor.cell"


class ToAgent:
    """Served by an agent, on the cell's bus, where the topic is `compute.<cell uuid>`."""

    __slots__ = ()
    topic = "compute"
