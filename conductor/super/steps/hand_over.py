"""Send builds to a cell, in as many messages as their size needs."""

import logging
from collections.abc import Iterator, Sequence

import msgspec

from conductor.engine.bulkheads import Postponed
from conductor.engine.step_calls import Calling
from conductor.engine.steps import Operation
from conductor.super.cell_clients import Cells
from conductor.super.scheduling import was_refused
from moorage import errors
from moorage.bus.handlers import SURELY_FITS
from moorage.messages import BuildInCell, InstanceBuild

LOG = logging.getLogger(__name__)


def giving(
    cells: Cells, operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]
) -> Calling[dict[str, errors.MoorageError | Postponed]]:
    """Send one cell its instances; return the error by cell uuid if it has not taken them.

    :raises MoorageError: it has taken a part of them and refused another one: all are sent again.
    """
    taken = 0
    try:
        for message in _messages(operation, cell_uuid, builds):
            yield from cells.calling(cell_uuid, message)
            taken += len(message.builds)
    except Postponed as fault:
        return {cell_uuid: fault}  # as usual as under load
    except errors.MoorageError as fault:
        LOG.warning("Cell %s has not taken %d instance(s): %s", cell_uuid, len(builds) - taken, fault)
        if taken and was_refused(fault):
            raise  # no refusal of all of them, which would be released
        return {cell_uuid: fault}
    LOG.info("Cell %s has taken %d instance(s)", cell_uuid, len(builds))
    return {}


def _messages(operation: Operation, cell_uuid: str, builds: Sequence[InstanceBuild]) -> Iterator[BuildInCell]:
    """Yield the messages with the builds, the same ones each time; mostly it is one."""
    parts = list(_parts(builds))
    for part in parts:
        # The id names the part: another release may divide the builds differently. A cell takes an instance once.
        named = (part[0].instance_uuid, part[-1].instance_uuid) if len(parts) > 1 else ()
        yield BuildInCell(request_id=operation.derived("hand_over", cell_uuid, *named), builds=tuple(part))


def _parts(builds: Sequence[InstanceBuild]) -> Iterator[Sequence[InstanceBuild]]:
    """Yield the builds in parts that fit into one message each."""
    start = size = 0
    for number, build in enumerate(builds if len(builds) > 1 else ()):
        length = len(msgspec.json.encode(build))
        if number > start and size + length > SURELY_FITS:
            yield builds[start:number]
            start, size = number, 0
        size += length
    yield builds[start:]
