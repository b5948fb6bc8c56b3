"""Check the options of `moorage explain`: none that has no effect is accepted."""

import argparse

from moorage import errors
from moorage.cli import group_options, request_arguments

#: The options of a size, which replaces the instance's own.
_SIZE = frozenset({"vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb", "extra_spec"})
_COUNT = frozenset({"count"})
#: Stands in errors for all options of resource groups.
_GROUPS = "resource, --required, --group and their like"


def check(given: argparse.Namespace) -> None:
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
                path=_flag(option),
                reason=f"it would count for nothing, as {_flag(source)} says what is asked for",
            )
        if size and not has_size(given):
            raise errors.InvalidRequest(path="--vcpus, --memory-mb", reason="a size is typed whole: both must be given")
        return
    if not has_size(given):
        raise errors.InvalidRequest(
            path="--vcpus, --memory-mb", reason="both must be given, or else one of --spec, --instance and --request-id"
        )


def has_size(given: argparse.Namespace) -> bool:
    """Return whether the options give a size."""
    return given.vcpus is not None and given.memory_mb is not None


def _given_options(given: argparse.Namespace) -> frozenset[str]:
    """Return the names of the request's options whose value is not the default."""
    parser = argparse.ArgumentParser(add_help=False)
    request_arguments.add_options(parser, size_required=False)
    usual = vars(parser.parse_args([]))
    typed = frozenset(option for option in usual if getattr(given, option) != usual[option])
    return typed | {_GROUPS} if group_options.groups(given) else typed


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
