"""Options for the request of a server, used by `moorage instance build` and `moorage explain`."""

import argparse
import getpass
import os
from collections.abc import Callable

from moorage.cli import group_options
from moorage.cli.arguments import Argument, canonical_uuid, keyed
from moorage.cli.lists import MessageClient
from moorage.messages import GetServerGroup
from moorage.model import Flavor, Image, RequestSpec


def add_options(parser: argparse.ArgumentParser, *, size_required: bool) -> None:
    """Add the options of a request; :func:`request_spec` reads them.

    :param size_required: False if the request may be given in another way.
    """
    add = parser.add_argument
    add("--vcpus", type=int, required=size_required, metavar="N", help="VCPU per instance")
    add("--memory-mb", type=int, required=size_required, metavar="MIB", help="MEMORY_MB per instance")
    add("--root-gb", type=int, default=0, metavar="GIB", help="Size of the root disk (default: 0)")
    add("--ephemeral-gb", type=int, default=0, metavar="GIB", help="Size of the ephemeral disk (default: 0)")
    add("--swap-mb", type=int, default=0, metavar="MIB", help="Size of the swap disk (default: 0)")
    add("--count", type=int, default=1, metavar="N", help="Number of instances (default: 1)")
    pairs("--extra-spec", "Extra spec of the flavor")(parser)
    pairs("--image-property", "Property of the image")(parser)
    pairs("--hint", "Scheduler hint, such as different_host=UUID,UUID")(parser)
    add("--availability-zone", metavar="NAME", help="Availability zone (default: any)")
    add(
        "--server-group",
        type=canonical_uuid,
        metavar="UUID",
        help="Server group of the instances; see `moorage server-group create`",
    )
    add("--project", default="default", metavar="NAME", help="Project of the instances (default: default)")
    add(
        "--user",
        default=_system_user(),
        metavar="NAME",
        help="User of the instances (default: the current system user)",
    )
    group_options.add_request_options(parser)


def pairs(name: str, what: str) -> Argument:
    """Declare a repeatable option with a key and a value."""
    return keyed(name, type=_pair, metavar="KEY=VALUE", help=what)


def flavor(given: argparse.Namespace) -> Flavor:
    """Return the size and the extra specs of the options."""
    sizes = {name: getattr(given, name) for name in ("vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb")}
    return Flavor(**sizes, extra_specs=dict(given.extra_spec))


def request_spec(given: argparse.Namespace, client: Callable[[str], MessageClient]) -> RequestSpec:
    """Return the request of the options; only the uuid of its server group is given, and the group is read.

    :param client: returns a client of a topic.
    :raises ServerGroupNotFound: the server group does not exist.
    """
    group = None
    if given.server_group is not None:
        group = client("placement").call(GetServerGroup(uuid=given.server_group)).group
    return RequestSpec(
        project_id=given.project,
        user_id=given.user,
        flavor=flavor(given),
        image=Image(properties=dict(given.image_property)),
        scheduler_hints=dict(given.hint),
        availability_zone=given.availability_zone,
        server_group=group,
        groups=dict(group_options.groups(given)),
        **group_options.between(given),
    )


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run its processes under a user id without a user name.
        return str(os.getuid())


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
