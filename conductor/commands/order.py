"""What the operator's orders have in common: given, then shown as things stand, at once or when they have come."""

import argparse
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec
from cliff.lister import Lister

from conductor.commands.waiting import wait_for
from moorage import errors, ids
from moorage.cli.command import Configured, shown
from moorage.messages import ShowInstance
from moorage.messages.basis import OrderAfter
from moorage.messages.conductor import EndOfMigration
from moorage.messages.wire import Mutation
from moorage.model import Instance

LOG = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

INSTANCE_COLUMNS = ("uuid", "state", "cell", "host", "attempts", "reason")
#: Seconds that `--wait` waits unless told: longer than any build of a healthy cloud. Arbitrary.
_WAIT_SECONDS = 600.0


class OrderCommand(Configured, Lister):
    """A command that orders something for instances, and may wait until it has come."""

    _failed = False

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Show what was ordered; tell by the exit status whether all that was waited for has come."""
        self._failed = False
        return super().run(parsed_args) or int(self._failed)

    def order(self, message: Mutation[R]) -> R:
        """Give an order to the super conductor; where it is unknown whether it has come, say how to repeat it."""
        try:
            return self.client("conductor").call(self._guarded(message))
        except (errors.NoReply, errors.StoreUnavailable, errors.CellUnreachable):
            # It may be on record all the same; the same order once more finds out.
            LOG.error("Whether it is ordered is unknown. Repeat it with --request-id %s", self._request_id)
            raise

    def _guarded(self, message: Mutation[R]) -> Mutation[R]:
        """Return an order that names the state which the operator has in mind: it is refused after any other order."""
        if not isinstance(message, OrderAfter | EndOfMigration):
            return message
        instance = self.client("conductor").call(ShowInstance(instance_uuid=message.instance_uuid))
        if isinstance(message, EndOfMigration):
            return msgspec.structs.replace(message, migration_uuid=instance.migration_uuid)
        return msgspec.structs.replace(message, last_order=instance.last_order)

    def named(self, given: argparse.Namespace) -> str:
        """Return what the request is called."""
        self._request_id: str = given.request_id or ids.fresh()
        return self._request_id

    def wait(
        self,
        given: argparse.Namespace,
        uuids: Sequence[str],
        state: str,
        what: str,
        ends: Collection[str] = (),
    ) -> list[tuple[Any, ...]]:
        """Return instances as rows, at once or when they are ``state`` or, in one of ``ends``, will not become so."""
        conductor = self.client("conductor")
        seen = self.waited(
            given,
            uuids,
            lambda uuid: conductor.call(ShowInstance(instance_uuid=uuid)),
            lambda instance: instance.state,
            ({state}, {state, *ends}),
            what,
        )
        return [instance_row(instance) for instance in seen]

    def waited(
        self,
        given: argparse.Namespace,
        uuids: Sequence[str],
        look: Callable[[str], T],
        state: Callable[[T], str],
        wanted_and_ends: tuple[Collection[str], Collection[str]],
        what: str,
    ) -> list[T]:
        """Return things as they are, at once or when each is in one of the states that end the waiting."""
        wanted, ends = wanted_and_ends
        seconds = given.wait_timeout if given.wait else 0.0
        seen = wait_for(look, uuids, lambda one: state(one) in ends, what, seconds)
        self._failed = given.wait and any(state(one) not in wanted for one in seen)
        return seen


def add_request_id(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the request."""
    parser.add_argument(
        "--request-id", metavar="ID", help="what the request is called on every log line; default: a new uuid"
    )


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options about waiting until all are ``what``."""
    parser.add_argument("--wait", action="store_true", help=f"wait until all are {what}")
    add_wait_timeout(parser)


def add_wait_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the option about how long to wait."""
    parser.add_argument(
        "--wait-timeout",
        type=float,
        default=_WAIT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait; default: {_WAIT_SECONDS:g}",
    )


def instance_row(instance: Instance) -> tuple[Any, ...]:
    """Return an instance as it is listed."""
    attempts = [attempt.host for attempt in instance.attempts]
    return shown((instance.uuid, instance.state, instance.cell, instance.host, attempts, instance.reason))
