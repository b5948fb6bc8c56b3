"""Options for resource groups: `--resource VGPU=1 --required CUSTOM_GPU --group 1 --resource ...`.

The names and formats are those of osc-placement. Options after `--group SUFFIX` belong to that group, until the next
`--group`. Options before the first `--group` belong to the unsuffixed group.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.cli.arguments import argument, canonical_uuid, converted
from moorage.model import UNSUFFIXED, Amount, ResourceClassName, ResourceGroup, ResourceRequest, Suffix, TraitName

#: The prefix for alternative traits in the value of `--required`, as in Placement's API.
_ANY_OF = "in:"


def add_group_options(
    parser: argparse.ArgumentParser, *, trees_by_name: bool = False, in_any_tree: bool = True
) -> None:
    """Add the options of one group; :func:`group` reads them.

    :param trees_by_name: the provider of --in-tree may be given by name; the caller looks it up.
    :param in_any_tree: False omits --in-tree, because the tree is known.
    """
    _add(parser, "--resource", _amount, "CLASS=AMOUNT", "Amount of a resource class to request")
    _add(parser, "--required", _required, "TRAIT", "Required trait; in:TRAIT,TRAIT requires any one of them")
    _add(parser, "--forbidden", _trait, "TRAIT", "Forbidden trait")
    _add(parser, "--member-of", _uuids, "UUID[,UUID...]", "Required aggregate; of several uuids, any one of them")
    _add(parser, "--not-member-of", _uuids, "UUID[,UUID...]", "Forbidden aggregate; of several uuids, all of them")
    if not in_any_tree:
        return
    tree, metavar = (str, "PROVIDER") if trees_by_name else (canonical_uuid, "UUID")
    _add(parser, "--in-tree", tree, metavar, "Use only providers of the tree of this provider", repeated="")


def add_request_options(parser: argparse.ArgumentParser, *, trees_by_name: bool = False) -> None:
    """Add the options of one group, for further groups and for conditions between them; :func:`request` reads them."""
    add_group_options(parser, trees_by_name=trees_by_name)
    parser.add_argument(
        "--group",
        type=_suffix,
        action=_GroupAction,
        metavar="SUFFIX",
        help="Start a further resource group, which one provider must serve; the options that follow belong to it",
    )
    parser.add_argument(
        "--group-policy",
        choices=("none", "isolate"),
        help="Whether each group with a suffix needs a provider of its own (isolate) or may share one (none)",
    )
    subtree = "Groups whose providers must be in the subtree of one of these providers"
    argument("--same-subtree", type=_suffixes, repeated=True, metavar="SUFFIX,SUFFIX[,...]", help=subtree)(parser)
    for name, what in (("--root-required", "Required"), ("--root-forbidden", "Forbidden")):
        of_root = f"{what} trait of the root of the tree"
        argument(name, type=_trait, repeated=True, metavar="TRAIT", help=of_root)(parser)


def group(given: argparse.Namespace) -> ResourceGroup:
    """Return the unsuffixed group, which is empty without options."""
    return groups(given).get(UNSUFFIXED, ResourceGroup())


def groups(given: argparse.Namespace) -> Mapping[str, ResourceGroup]:
    """Return the groups of all options by suffix, including groups with `--group SUFFIX` only."""
    return {suffix: _group(words) for suffix, words in _typed(given).items()}


def request(given: argparse.Namespace) -> ResourceRequest:
    """Return the resource request of all options."""
    return ResourceRequest(groups=dict(groups(given)), **between(given))


def between(given: argparse.Namespace) -> dict[str, Any]:
    """Return the conditions between groups, by the field names of requests."""
    return {
        "group_policy": given.group_policy,
        "same_subtree": tuple(given.same_subtree),
        "root_required": tuple(given.root_required),
        "root_forbidden": tuple(given.root_forbidden),
    }


# --- Collecting -----------------------------------------------------------------------------------------------------


def _typed(given: argparse.Namespace) -> defaultdict[str, defaultdict[str, list[Any]]]:
    """Return the values of the parsed options, by group and option."""
    return vars(given).setdefault("groups", defaultdict(lambda: defaultdict(list)))  # type: ignore[no-any-return]


def _group(words: defaultdict[str, list[Any]]) -> ResourceGroup:
    return ResourceGroup(
        resources=dict(words["resource"]),
        required=tuple(traits[0] for any_of, traits in words["required"] if not any_of),
        any_of=tuple(traits for any_of, traits in words["required"] if any_of),
        forbidden=tuple(words["forbidden"]),
        member_of=tuple(words["member_of"]),
        not_member_of=tuple(uuid for uuids in words["not_member_of"] for uuid in uuids),
        in_tree=next(iter(words["in_tree"]), None),
    )


class _GroupAction(argparse.Action):
    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        namespace.group = values
        _typed(namespace)[values]  # creates the group, even if no options follow


class _OptionAction(argparse.Action):
    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        # An option belongs to the last `--group` before it.
        words = _typed(namespace)[getattr(namespace, "group", None) or UNSUFFIXED][self.dest]
        if words and (self.dest == "in_tree" or (self.dest == "resource" and values[0] in dict(words))):
            raise argparse.ArgumentError(self, f"{option} is given twice for one group")
        words.append(values)


def _add(
    parser: argparse.ArgumentParser, name: str, kind: Any, metavar: str, text: str, repeated: str = "; may be repeated"
) -> None:
    parser.add_argument(
        name, type=kind, action=_OptionAction, default=argparse.SUPPRESS, metavar=metavar, help=text + repeated
    )


# --- Values ---------------------------------------------------------------------------------------------------------


def _trait(text: str) -> str:
    return str(converted(text, TraitName, f"{text!r} is not a valid trait"))


def _amount(text: str) -> tuple[str, int]:
    name, _, amount = text.partition("=")
    if not amount.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not CLASS=AMOUNT")
    class_name = converted(name, ResourceClassName, f"{name!r} is not a valid resource class")
    return class_name, converted(int(amount), Amount, f"{int(amount)} is not a valid amount")


def _required(text: str) -> tuple[bool, Sequence[str]]:
    """Return whether traits are alternatives, and the traits."""
    names = text.removeprefix(_ANY_OF)
    any_of = names != text
    return any_of, tuple(_trait(name) for name in (names.split(",") if any_of else [names]))


def _uuids(text: str) -> Sequence[str]:
    return tuple(map(canonical_uuid, text.split(",")))


def _suffix(text: str) -> str:
    if text == UNSUFFIXED:
        raise argparse.ArgumentTypeError("a group's suffix has at least one character")
    return str(converted(text, Suffix, f"{text!r} is not a valid suffix"))


def _suffixes(text: str) -> Sequence[str]:
    return tuple(_suffix(suffix) for suffix in text.split(","))
