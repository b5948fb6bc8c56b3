"""The base of the operator's commands that send orders: send, optionally wait for the result, show the state."""

import argparse
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import msgspec
from cliff.lister import Lister

from moorage import errors, ids
from moorage.cli import progress
from moorage.cli.arguments import argument, not_negative
from moorage.cli.command import Configured, shown
from moorage.cli.lists import instance_uuid
from moorage.messages import ShowInstance
from moorage.messages.basis import OrderAfter
from moorage.messages.conductor import EndOfMigration
from moorage.messages.wire import Mutation
from moorage.model import Instance, Migration
from moorage.model.inspection import OperationSummary

LOG = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", Instance, Migration, OperationSummary)

#: The errors after which an order may have been recorded, by this delivery or by an earlier one.
_MAY_BE_RECORDED = (
    errors.NoReply,
    errors.BusUnavailable,
    errors.StoreUnavailable,
    errors.CellUnreachable,
    errors.DeadlineExceeded,
    errors.RequestInProgress,
    errors.InternalError,
)
INSTANCE_COLUMNS = ("uuid", "name", "state", "cell", "host", "attempts", "reason")
#: The default of `--wait-timeout`, in seconds: longer than any build of a healthy cloud. Arbitrary.
_WAIT_SECONDS = 600.0
#: Seconds between two reads: short enough for an operator, long enough for a conductor.
_INTERVAL = 0.3


def _not_empty(text: str) -> str:
    """Refuse an empty text: a script whose variable is not set must not order the same thing twice."""
    if not text:
        raise argparse.ArgumentTypeError("is empty")
    return text


REQUEST_ID = argument(
    "--request-id",
    type=_not_empty,
    metavar="ID",
    help="Id of the request, which appears in all log lines about it (default: a new uuid)",
)
#: The same for a command that gives an order for each of some servers.
BASE_REQUEST_ID = argument(
    "--request-id",
    type=_not_empty,
    metavar="ID",
    help="Id of the request (default: a new uuid). Log lines have an id that is derived from it for each server",
)
WAIT_TIMEOUT = argument(
    "--wait-timeout",
    type=not_negative,
    default=_WAIT_SECONDS,
    metavar="SECONDS",
    help=f"Maximum seconds to wait for the end (default: {_WAIT_SECONDS:g})",
)


class OrderCommand(Configured, Lister):
    """A command that sends orders for instances, and can wait until they are carried out."""

    #: Whether an order may have been recorded.
    _is_sent = False
    #: Null for a command whose orders may be repeated with other ids.
    _request_id: str | None = None

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; the exit status is 1 if an order that was waited for has not reached its state.

        If it ends early after an order was sent, log how to repeat it.
        """
        self.failed = self._is_sent = False
        try:
            return super().run(parsed_args)
        except BaseException:  # Ctrl-C, too
            if self._is_sent:
                # If the order is repeated with the same request id, it is carried out only once.
                how = "the command" if self._request_id is None else f"it with --request-id {self._request_id}"
                LOG.error("An order was sent and may be recorded. Repeat %s", how)
            raise

    def instance_uuids(self, given: Sequence[str], *, or_deleted: bool = False) -> list[str]:
        """Return the uuids of the instances with these names or uuids; see :func:`instance_uuid`."""
        with _before_sending():
            return [instance_uuid(self.client("conductor"), named, or_deleted=or_deleted) for named in given]

    def order(self, message: Mutation[R]) -> R:
        """Send an order to the super conductor; if it was certainly not sent, log that."""
        conductor = self.client("conductor")
        with _before_sending():
            conductor.require()
            message = self._guarded(message)
        sent_before, self._is_sent = self._is_sent, True
        try:
            return conductor.call(message)
        except errors.MoorageError as fault:
            if not isinstance(fault, _MAY_BE_RECORDED):
                self._is_sent = sent_before
            if isinstance(fault, errors.RequestIdReused | errors.RequestInProgress):
                # With the id that is derived from the given one for a server, the command would give another order.
                raise type(fault)(request_id=self._request_id or fault.request_id) from fault
            raise

    def order_each(self, uuids: Sequence[str], order: Callable[[str], T]) -> list[T]:
        """Send an order for each of these instances; if one fails, log the instances for which it was sent before."""
        given: list[T] = []
        for uuid in uuids:
            try:
                given.append(order(uuid))
            except errors.MoorageError:
                if given:
                    before = ", ".join(uuids[: len(given)])
                    LOG.error("Before that it was ordered for %s; for what follows it was not", before)
                raise
        return given

    def _guarded(self, message: Mutation[R]) -> Mutation[R]:
        """Add the number of the last order, or the migration, so that the order is refused after any other order."""
        if not isinstance(message, OrderAfter | EndOfMigration):
            return message
        if isinstance(message, OrderAfter) and message.last_order is not None:
            return message  # the order depends on what was read before
        instance = self.client("conductor").call(ShowInstance(instance_uuid=message.instance_uuid))
        if isinstance(message, EndOfMigration):
            return msgspec.structs.replace(message, migration_uuid=instance.migration_uuid)
        return msgspec.structs.replace(message, last_order=instance.last_order)

    def named(self, given: argparse.Namespace) -> str:
        """Return the request id that is given, or a new one, and keep it for error messages."""
        self._request_id = request_id = given.request_id or ids.fresh()
        return request_id

    def wait(
        self, given: argparse.Namespace, uuids: Sequence[str], state: str, what: str, ends: Collection[str] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of instances; with `--wait`, when each is in ``state`` or in one of ``ends``."""
        conductor = self.client("conductor")

        def look(uuid: str) -> Instance:
            return conductor.call(ShowInstance(instance_uuid=uuid))

        return [instance_row(one) for one in self.waited(given, uuids, look, {state}, {state, *ends}, what)]

    def is_given_up(self, _one: Any) -> bool:
        """Return whether the order was given up, although the state does not show it; then the wait ends, too."""
        return False

    def waited(
        self,
        given: argparse.Namespace,
        uuids: Sequence[str],
        look: Callable[[str], S],
        wanted: Collection[str],
        ends: Collection[str],
        what: str,
    ) -> list[S]:
        """Return the objects by uuid, as last read; with `--wait`, when each is in a state that ends it, or given up.

        A progress bar shows how many are. If the conductor is unavailable, read again: it has the orders on record.

        :raises Unavailable: an object could not be read even once in that time.
        """
        seconds = given.wait_timeout if given.wait else 0.0
        end = time.monotonic() + seconds
        seen: dict[str, S] = {}
        open_ = list(uuids)
        # Without a wait, show no progress bar.
        with progress.bars() if seconds else nullcontext() as bars:
            task = None if bars is None else bars.add_task(what, total=len(uuids))
            while True:
                fault: errors.Unavailable | None = None
                for uuid in list(open_):
                    try:
                        seen[uuid] = look(uuid)
                        is_over = seen[uuid].state in ends or (given.wait and self.is_given_up(seen[uuid]))
                    except errors.Unavailable as unavailable:
                        fault = unavailable
                        break
                    if is_over:
                        open_.remove(uuid)
                        if bars is not None and task is not None:
                            bars.advance(task)
                if not open_ or time.monotonic() > end:
                    break
                time.sleep(_INTERVAL)
        if fault is not None and len(seen) < len(uuids):
            raise fault
        self.failed = given.wait and any(one.state not in wanted for one in seen.values())
        return [seen[uuid] for uuid in uuids]


@contextmanager
def _before_sending() -> Iterator[None]:
    """Log that the order was not sent, if a service is unavailable in the ``with`` block."""
    try:
        yield
    except errors.Unavailable:
        LOG.error("The order was not sent")
        raise


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options `--wait` and `--wait-timeout`; ``what`` completes the help "wait until all are"."""
    parser.add_argument("--wait", action="store_true", help=f"Wait until all instances are {what}")
    WAIT_TIMEOUT(parser)


def instance_row(instance: Instance) -> tuple[Any, ...]:
    """Return the row of an instance in a list."""
    attempts = [attempt.host for attempt in instance.attempts]
    return shown(
        (instance.uuid, instance.name, instance.state, instance.cell, instance.host, attempts, instance.reason)
    )
