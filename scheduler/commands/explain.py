"""`moorage explain`: show the host that a request would get and why, or why there is none."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from cliff.show import ShowOne

from moorage import errors
from moorage.cli import group_options, lists, request_arguments
from moorage.cli.arguments import argument, one_of, positive
from moorage.cli.command import Configured, Record, ShownValue
from moorage.messages import (
    MAX_INSTANCES,
    ExplainRequest,
    ListCells,
    ListInstances,
    ListMigrations,
    ShowInstance,
)
from moorage.messages.scheduler import MOST_EXPLAINED_HOSTS
from moorage.messages.wire import decode_strictly
from moorage.model import Destination, Explanation, Instance, MoveKind, RequestSpec
from moorage.model.states import UNDER_WAY
from scheduler.commands.explain_format import fields

#: Exit statuses.
A_HOST, NO_HOST, BAD_INPUT, NOT_KNOWN = 0, 1, 2, 3
#: The options of a size, which replaces the size of the instance.
_SIZE = frozenset({"vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb", "extra_spec"})
_COUNT = frozenset({"count"})
#: Stands in errors for all options of resource groups.
_GROUPS = "resource, --required, --group and their like"


class Explain(Configured, ShowOne):
    """Explain where a request would be placed, or why there is no valid host, without claiming anything.

    Give the request as for `moorage instance build`, or name an instance. For an instance that was refused, and for a
    request id, the command shows the recorded explanation; --now, --host, --what-if or a size decides again instead. An
    instance that has a host is treated as if it were placed now and its own resources were free; with --moving, as if
    it had to move to another host of its cell. A size on the command line replaces the size of the instance.

    Exit status: 0 if there is a host, 1 if there is none, 2 for invalid input, 3 if there is no answer.
    """

    only_reads = True

    arguments = (
        one_of(
            argument("--spec", metavar="FILE", help="File with the request spec as JSON; - reads standard input"),
            argument(
                "--instance", metavar="INSTANCE", help="Explain the current request of this instance (name or uuid)"
            ),
            argument("--request-id", metavar="ID", help="Explain the decision for this request id, a build or a move"),
        ),
        lambda parser: request_arguments.add_options(parser, size_required=False),
        argument("--host", repeated=True, metavar="NAME", help="Explain why the request does not go to this host"),
        argument("--now", action="store_true", help="Decide again, even if an explanation is recorded"),
        argument(
            "--moving",
            choices=get_args(MoveKind),
            metavar="KIND",
            help="Explain as if the instance had to move: %(choices)s",
        ),
        argument(
            "--what-if",
            action="store_true",
            help="Count how many more servers of this size would fit, in all and per cell",
        ),
        argument(
            "--patience",
            type=positive,
            default=5.0,
            metavar="SECONDS",
            help="Time limit of --what-if, up to 60 (default: %(default)g)",
        ),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command and return its exit status; errors go to standard error."""
        self._status = NOT_KNOWN
        try:
            super().run(parsed_args)
        except BrokenPipeError:
            raise  # The reader of the output has ended. That is no failure of the scheduler.
        except errors.CallerError as fault:
            sys.stderr.write(f"{fault.with_code}\n")
            return BAD_INPUT
        except errors.MoorageError as fault:
            advice = f" {fault.advice}" if isinstance(fault, errors.BrokenPlugin) else ""
            sys.stderr.write(f"It is unknown whether there is a host: {fault.with_code}{advice}\n")
            return NOT_KNOWN
        except Exception as fault:  # else the exit status would be 1, which means that there is no host
            if self.app.options.debug:
                raise
            sys.stderr.write(f"It is unknown whether there is a host: {type(fault).__name__}: {fault}\n")
            return NOT_KNOWN
        return self._status

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Sequence[Any]) -> int:
        """Show the fields.

        :raises InvalidRequest: a column of `-c` does not exist.
        """
        try:
            return super().produce_output(parsed_args, column_names, data)
        except ValueError as fault:
            raise errors.InvalidRequest(path="--column", reason=str(fault).rstrip(".")) from fault

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Read a stored explanation or ask for a new one, and return its fields."""
        about: dict[str, Any] = {}
        _check(parsed_args)
        explanation = self._explanation(parsed_args, about)
        self._status = A_HOST if explanation.chosen is not None else NO_HOST
        shown = {name: ShownValue(value) for name, value in about.items()} | fields(explanation, self._cells())
        return tuple(shown), tuple(shown.values())

    # --- New explanations ---------------------------------------------------------------------------------------------

    def _explanation(self, given: argparse.Namespace, about: dict[str, Any]) -> Explanation:
        if given.request_id is not None:
            return self._of_request_id(given, about)
        if given.instance is not None:
            return self._of_instance(given, given.instance, about)
        if given.moving is not None:
            raise errors.InvalidRequest(path="--moving", reason="only an instance can move: give it with --instance")
        if given.spec is not None:
            return self._ask(given, _read(given.spec))
        return self._ask(given, request_arguments.request_spec(given, self.client))

    def _ask(self, given: argparse.Namespace, spec: RequestSpec, instance: Instance | None = None) -> Explanation:
        if not 1 <= given.count <= MAX_INSTANCES:
            raise errors.InvalidRequest(path="--count", reason=f"from 1 to {MAX_INSTANCES} can be requested")
        message = ExplainRequest(
            request_spec=spec,
            instances=given.count,
            instance_uuid=None if instance is None else instance.uuid,
            under_way=None if instance is None else instance.state in UNDER_WAY,
            moving=given.moving,
            hosts=explained_hosts(instance, given.host),
            what_if=given.what_if,
            patience=given.patience,
        )
        # The scheduler may search for `patience` seconds before it answers.
        seconds = self.calling.rpc.call_timeout + given.patience if given.what_if else None
        return self.client("scheduler").call(message, seconds)

    # --- Stored explanations ------------------------------------------------------------------------------------------

    def _of_instance(self, given: argparse.Namespace, named: str, about: dict[str, Any]) -> Explanation:
        conductor = self.client("conductor")
        message = ShowInstance(instance_uuid=lists.instance_uuid(conductor, named), with_request=True)
        instance = conductor.call(message)
        about |= {"instance": instance.uuid, "state": instance.state, "on_host": instance.host}
        if instance.explanation is not None and not (_needs_new_decision(given) or given.moving):
            about["asked"] = "when it was refused; --now decides again"
            return instance.explanation
        about["asked"] = "now"
        return self._ask(given, _request_of(given, instance), instance)

    def _of_request_id(self, given: argparse.Namespace, about: dict[str, Any]) -> Explanation:
        conductor, request_id = self.client("conductor"), given.request_id
        instances = lists.instances(conductor, ListInstances(request_id=request_id, deleted=True))
        if instances:
            # One decision places or refuses all instances of a request: all of them have the same explanation.
            refused = [instance for instance in instances if instance.explanation is not None]
            about["instances"] = len(instances)
            return self._of_instance(given, (refused or instances)[0].uuid, about)
        for migration in lists.migrations(conductor, ListMigrations(request_id=request_id, ended=True)):
            about |= {"migration": migration.uuid, "state": migration.state}
            if migration.explanation is None or _needs_new_decision(given):
                given.moving = given.moving or migration.kind
                return self._of_instance(given, migration.instance_uuid, about)
            about["asked"] = "when it was refused; --now decides again"
            return migration.explanation
        raise errors.InvalidRequest(
            path="--request-id", reason=f"there is no record of an order with request id {request_id}"
        )

    def _cells(self) -> Mapping[str, str]:
        """Return the names of the cells by uuid, or nothing if they cannot be read: then show the uuids."""
        try:
            return {cell.uuid: cell.name for cell in self.client("placement").call(ListCells(without_databases=True))}
        except errors.Unavailable:
            return {}


def _needs_new_decision(given: argparse.Namespace) -> bool:
    """Return whether an option asks for more than a stored explanation has."""
    return bool(given.now or given.host or given.what_if or _has_size(given))


def recorded_request(instance: Instance) -> RequestSpec:
    """Return the request of an instance as it is on record.

    :raises InvalidState: the instance requests nothing any more, or its request is not on record.
    """
    if instance.state in ("deleting", "deleted"):
        raise errors.InvalidState(reason=f"instance {instance.uuid} is {instance.state}")
    if instance.request_spec is None:
        raise errors.InvalidState(reason=f"the request of instance {instance.uuid} is not recorded")
    return instance.request_spec


def _request_of(given: argparse.Namespace, instance: Instance) -> RequestSpec:
    """Return the request of an instance: with the size from the options, and in its own cell if it stays there."""
    spec = recorded_request(instance)
    if _has_size(given):
        spec = msgspec.structs.replace(spec, flavor=request_arguments.flavor(given))
    if given.moving is None:
        return present_request(instance, spec)
    return _within_its_cell(instance, spec)


def present_request(instance: Instance, spec: RequestSpec) -> RequestSpec:
    """Return the request of an instance as if it were to be placed now: a shelved one stays in its cell."""
    return _within_its_cell(instance, spec) if instance.state in ("shelved", "unshelving") else spec


def explained_hosts(instance: Instance | None, named: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts to explain: the named ones, and the own one of an instance if the message has room for it."""
    hosts = tuple(dict.fromkeys(named))
    if instance is None or instance.host is None or instance.host in hosts or len(hosts) >= MOST_EXPLAINED_HOSTS:
        return hosts
    return (*hosts, instance.host)


def _within_its_cell(instance: Instance, spec: RequestSpec) -> RequestSpec:
    within = Destination(cell=instance.cell_uuid)
    return msgspec.structs.replace(spec, requested_destination=within, ignore_hosts=(), force_hosts=(), force_nodes=())


def _read(file: str) -> RequestSpec:
    """Read a request spec from a file.

    :raises InvalidRequest: the file cannot be read or is not a request spec; with the path of the wrong field.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return decode_strictly(RequestSpec, msgspec.json.decode(text))
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as fault:
        raise errors.InvalidRequest(path=f"--spec {file}", reason=str(fault)) from fault


# --- Options that have no effect ------------------------------------------------------------------------------------


def _check(given: argparse.Namespace) -> None:
    """Check that each given option has an effect, and that a size is complete.

    :raises InvalidRequest: an option has no effect, or a size is incomplete; the error names the option.
    """
    given_options = _given_options(given)
    size = bool(given_options & _SIZE)
    for source, allowed in (("spec", _COUNT), ("instance", _SIZE | _COUNT), ("request_id", _SIZE | _COUNT)):
        if getattr(given, source) is None:
            continue
        for option in sorted(given_options - allowed):
            raise errors.InvalidRequest(
                path=_flag(option), reason=f"it has no effect, because {_flag(source)} gives the request"
            )
        if size and not _has_size(given):
            raise errors.InvalidRequest(path="--vcpus, --memory-mb", reason="both must be given")
        return
    if not _has_size(given):
        raise errors.InvalidRequest(
            path="--vcpus, --memory-mb", reason="give both, or one of --spec, --instance and --request-id"
        )


def _has_size(given: argparse.Namespace) -> bool:
    return given.vcpus is not None and given.memory_mb is not None


def _given_options(given: argparse.Namespace) -> frozenset[str]:
    parser = argparse.ArgumentParser(add_help=False)
    request_arguments.add_options(parser, size_required=False)
    usual = vars(parser.parse_args([]))
    typed = frozenset(option for option in usual if getattr(given, option) != usual[option])
    return typed | {_GROUPS} if group_options.groups(given) else typed


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
