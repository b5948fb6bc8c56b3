"""Send builds to a cell, in as many messages as their size needs."""

import logging
from collections.abc import Iterator, Sequence

from conductor.engine.step_calls import Calling
from conductor.engine.steps import Operation
from conductor.engine.waiting_steps import Postponed
from conductor.super.cell_clients import Cells
from conductor.super.scheduling import was_refused
from moorage import errors
from moorage.bus.message_size import in_parts
from moorage.messages import BuildInCell, InstanceBuild

LOG = logging.getLogger(__name__)


def sending_builds(
    cells: Cells, operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]
) -> Calling[dict[str, errors.MoorageError | Postponed]]:
    """Send one cell its instances; return the error by cell uuid if it has not taken them.

    :raises MoorageError: the cell has taken some of them and refused others: all are sent again.
    """
    taken = 0
    try:
        for message in _messages(operation, cell_uuid, builds):
            yield from cells.calling(cell_uuid, message)
            taken += len(message.builds)
    except Postponed as fault:
        return {cell_uuid: fault}  # not logged: this is normal under load
    except errors.MoorageError as fault:
        LOG.warning("Cell %s has not taken %d instance(s): %s", cell_uuid, len(builds) - taken, fault)
        if taken and was_refused(fault):
            raise  # returned as a refusal of all of them, it would release them all
        return {cell_uuid: fault}
    LOG.info("Cell %s has taken %d instance(s)", cell_uuid, len(builds))
    return {}


def _messages(operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]) -> Iterator[BuildInCell]:
    """Yield the messages with the builds, usually one; they are the same each time."""
    parts = list(in_parts(builds))
    for part in parts:
        # The id names the part, because another release may divide the builds differently. A cell takes an instance
        # once.
        named = (part[0].instance_uuid, part[-1].instance_uuid) if len(parts) > 1 else ()
        yield BuildInCell(request_id=operation.derived("hand_over", cell_uuid, *named), builds=tuple(part))
