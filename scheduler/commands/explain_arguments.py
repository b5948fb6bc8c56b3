"""Which words count on a command line of `moorage explain`: none is passed over in silence."""

import argparse

from moorage import errors
from moorage.cli import group_options, request_arguments

#: What makes up a size; it counts instead of an instance's own.
_SIZE = frozenset({"vcpus", "memory_mb", "root_gb", "ephemeral_gb", "swap_mb", "extra_spec"})
_COUNT = frozenset({"count"})
#: All that is said of resource groups.
_GROUPS = "resource, --required, --group and their like"


def check(given: argparse.Namespace) -> None:
    """Refuse words that would count for nothing, and a size that is not whole.

    :raises InvalidRequest: there are such, with the option.
    """
    typed = _typed(given)
    size = bool(typed & _SIZE)
    for source, counting in (("spec", _COUNT), ("instance", _SIZE | _COUNT), ("request_id", _SIZE | _COUNT)):
        if getattr(given, source) is None:
            continue
        for word in sorted(typed - counting):
            raise errors.InvalidRequest(
                path=_option(word),
                reason=f"it would count for nothing, as {_option(source)} says what is asked for",
            )
        if size and not has_size(given):
            raise errors.InvalidRequest(path="--vcpus, --memory-mb", reason="a size is typed whole: both must be given")
        return
    if not has_size(given):
        raise errors.InvalidRequest(
            path="--vcpus, --memory-mb", reason="both must be given, or else one of --spec, --instance and --request-id"
        )


def has_size(given: argparse.Namespace) -> bool:
    """Tell whether a size was typed."""
    return given.vcpus is not None and given.memory_mb is not None


def _typed(given: argparse.Namespace) -> frozenset[str]:
    """Return the words of a request that are not as they are where nothing is typed."""
    parser = argparse.ArgumentParser(add_help=False)
    request_arguments.add_words(parser, size_required=False)
    usual = vars(parser.parse_args([]))
    typed = frozenset(word for word in usual if getattr(given, word) != usual[word])
    return typed | {_GROUPS} if group_options.groups(given) else typed


def _option(word: str) -> str:
    return f"--{word.replace('_', '-')}"
