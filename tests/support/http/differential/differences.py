"""All intended differences between the published Placement and our API, with their reasons. There are no others."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from support.http.differential.comparison import PARTS, Exchange


@dataclass(frozen=True)
class Difference:
    """One intended difference.

    :param parts: the parts of an exchange that may differ because of it.
    :param holds: returns whether an exchange is a case of it.
    """

    reason: str
    parts: Sequence[str]
    holds: Callable[[Exchange], bool]


def unexplained(exchange: Exchange) -> set[str]:
    """Return the parts that differ without a listed reason."""
    left = set(exchange.differing)
    for one in DIFFERENCES:
        if left.intersection(one.parts) and one.holds(exchange):
            left -= set(one.parts)
    return left


def _lacks(header: str) -> Callable[[Exchange], bool]:
    """Return a check that Placement has left out this header, and that no other header differs."""

    def holds(exchange: Exchange) -> bool:
        theirs = exchange.theirs.headers
        return (
            header not in theirs
            and exchange.ours.headers.keys() - {header} == theirs.keys()
            and all(exchange.ours.headers[name] == value for name, value in theirs.items())
        )

    return holds


def _statuses(ours: int, theirs: int, method: str, path: str) -> Callable[[Exchange], bool]:
    """Return a check that a request of this kind, with ``path`` as a pattern, has got these two statuses."""

    def holds(exchange: Exchange) -> bool:
        request = exchange.request
        return (exchange.ours.status, exchange.theirs.status, request.method) == (ours, theirs, method) and bool(
            re.fullmatch(path, request.path)
        )

    return holds


def _of_allocations(exchange: Exchange) -> bool:
    return exchange.request.path.startswith(("/allocations", "/reshaper"))


_OUT_OF_BOUNDS = re.compile(
    r"\$\.name\. Failed validating '(minLength|pattern)'|Failed validating '(exclusiveMinimum|maximum|maxItems)'"
)
_DATA = re.compile(r"'[^']*'|[0-9a-f]{8}-[0-9a-f-]{27}|[A-Z][A-Z0-9]*_?[A-Z0-9_]+")


def _names_another(exchange: Exchange) -> bool:
    """Return whether the phrases are the same but for other names."""
    ours, theirs = ([_DATA.sub("", phrase) for phrase in one.phrases] for one in (exchange.ours, exchange.theirs))
    return ours == theirs


def _spells_aggregates(exchange: Exchange) -> bool:
    """Return whether the documents are the same but for the spelling of aggregates."""
    ours, theirs = exchange.ours.document, exchange.theirs.document
    if not all(isinstance(one, dict) and "aggregates" in one for one in (ours, theirs)):
        return False
    return bool({**theirs, "aggregates": sorted({str(UUID(one)) for one in theirs["aggregates"]})} == ours)


def _finds_too_little(exchange: Exchange) -> bool:
    """Return whether a group asks for nothing that a provider must have, and Placement has found nothing."""
    asked = exchange.request.query
    positive = {
        name.partition(key)[2]
        for key in ("resources", "required", "member_of")
        for name, value in asked
        if name.startswith(key) and not value.startswith("!")
    }
    groups = {name.removeprefix(key) for key in ("required", "member_of", "in_tree") for name, _ in asked
              if name.startswith(key)}  # fmt: skip
    theirs = exchange.theirs.document
    return bool(groups - positive - {""}) and isinstance(theirs, dict) and theirs.get("allocation_requests") == []


def _counts_twice(exchange: Exchange) -> bool:
    """Return whether Placement has added up amounts to more than the request has, and they differ in nothing else."""
    ours, theirs = exchange.ours.document, exchange.theirs.document
    if not all(isinstance(one, dict) and "allocation_requests" in one for one in (ours, theirs)):
        return False
    if ours["provider_summaries"] != theirs["provider_summaries"]:
        return False
    sums = [sorted(sum(_amounts(one)) for one in document["allocation_requests"]) for document in (ours, theirs)]
    return len(sums[0]) == len(sums[1]) and sums[0][0] == sums[0][-1] <= sums[1][0] and sums[0] != sums[1]


def _lacks_candidates(exchange: Exchange) -> bool:
    """Return whether Placement only lacks candidates, of a request that has one of the listed properties."""
    ours, theirs = exchange.ours.document, exchange.theirs.document
    if not all(isinstance(one, dict) and "allocation_requests" in one for one in (ours, theirs)):
        return False
    known = theirs["allocation_requests"]
    lacking = [one for one in ours["allocation_requests"] if one not in known]
    resources = {name: value for name, value in exchange.request.query if name.startswith("resources")}
    classes = [part.partition(":")[0] for value in resources.values() for part in value.split(",")]
    sharing = {
        uuid for uuid, one in ours["provider_summaries"].items() if "MISC_SHARES_VIA_AGGREGATE" in one.get("traits", ())
    }
    is_shared = "resources" in resources and all(
        sharing.issuperset(one["mappings"][""]) if "mappings" in one else sharing for one in lacking
    )
    several = [name for name, _ in exchange.request.query].count("member_of") > 1
    return len(known) + len(lacking) == len(ours["allocation_requests"]) and (
        is_shared or several or len(classes) > len(set(classes))
    )


def _bumps_once(exchange: Exchange) -> bool:
    """Return whether our bumps are single, and Placement lacks only those of providers whose allocations changed."""
    ours, theirs = exchange.ours.providers, exchange.theirs.providers
    return (
        set(ours.values()) <= {1}
        and theirs.keys() <= ours.keys()
        and (ours.keys() - theirs.keys()).issubset(exchange.ours.reallocated)
    )


def _amounts(candidate: Mapping[str, Any]) -> list[int]:
    parts = candidate["allocations"]
    shown = parts.values() if isinstance(parts, dict) else parts
    return [amount for part in shown for amount in part["resources"].values()]


DIFFERENCES = [
    Difference(
        "Placement leaves Vary out of errors that a handler raises; caches need it on each answer.",
        ["headers"],
        lambda exchange: exchange.theirs.status >= 400 and _lacks("vary")(exchange),
    ),
    Difference(
        "Placement leaves Allow out of the 405 for a method that came with a later version; HTTP requires it.",
        ["headers"],
        lambda exchange: exchange.theirs.status == 405 and _lacks("allow")(exchange),
    ),
    Difference(
        "Placement leaves Last-Modified out where there is no inventory whose time it could take.",
        ["headers"],
        lambda exchange: exchange.request.path.endswith("/inventories") and _lacks("last-modified")(exchange),
    ),
    Difference(
        "Placement's noauth2 has its own form of a 401; in a real cloud Keystone's middleware answers on both.",
        PARTS,
        lambda exchange: exchange.ours.status == exchange.theirs.status == 401,
    ),
    Difference(
        "Of several missing names, or classes that do not fit or are in use, either server names any one or all.",
        ["phrases"],
        lambda exchange: (
            (_of_allocations(exchange) or exchange.request.path.endswith("/inventories"))
            and exchange.ours.status in (400, 409)
            and _names_another(exchange)
        ),
    ),
    Difference(
        "Of classes and traits of a query that do not exist, either server names the one that it looks up first.",
        ["phrases"],
        lambda exchange: (
            exchange.request.method == "GET"
            and exchange.ours.status == exchange.theirs.status == 400
            and all("No such " in " ".join(one.phrases) for one in (exchange.ours, exchange.theirs))
        ),
    ),
    Difference(
        "Of several amounts that do not fit, either server tells the reason of any one.",
        ["phrases"],
        lambda exchange: (
            _of_allocations(exchange)
            and exchange.ours.status == exchange.theirs.status == 409
            and bool(re.search("enough room on ([2-9]|[1-9][0-9]+) inventories", exchange.ours.text))
        ),
    ),
    Difference(
        "Of a uuid and a name that are both taken, Placement names the one that its database complains of first.",
        ["phrases"],
        _statuses(409, 409, "POST", "/resource_providers"),
    ),
    Difference(
        "A generation is bumped once by each change, also of a provider that loses allocations only; Placement's "
        "reshaper bumps twice, and a loss not at all, so that a view by generations would miss it.",
        ["providers"],
        lambda exchange: _of_allocations(exchange) and _bumps_once(exchange),
    ),
    Difference(
        "Placement's reshaper takes more reserved than there is, which nothing else takes.",
        PARTS,
        lambda exchange: (
            exchange.request.path == "/reshaper"
            and exchange.ours.status == 400
            and "more is reserved than there is" in exchange.ours.text
        ),
    ),
    Difference(
        "A provider's name is not empty and does not end with a blank, which MySQL would not tell from none; a ratio "
        "is above 0, and a number fits its column. Placement takes some of these, and refuses others later or fails.",
        PARTS,
        lambda exchange: exchange.ours.status == 400 and bool(_OUT_OF_BOUNDS.search(exchange.ours.text)),
    ),
    Difference(
        "Aggregates came with 1.1: 404 before, as at any other path; here Placement looks at media types first.",
        PARTS,
        lambda exchange: (
            exchange.request.version == "1.0"
            and any(
                _statuses(404, theirs, method, "/resource_providers/[^/]*/aggregates")(exchange)
                for theirs, method in ((406, "GET"), (415, "PUT"))
            )
        ),
    ),
    Difference(
        "Placement does not look at the first of several limits before it takes it for a number.",
        PARTS,
        _statuses(400, 500, "GET", "/allocation_candidates"),
    ),
    Difference(
        "Placement answers a HEAD, which no path has, as if there were a page for a browser.",
        ["headers"],
        lambda exchange: exchange.request.method == "HEAD" and exchange.ours.status == exchange.theirs.status == 405,
    ),
    Difference(
        "A class or trait that does not exist is refused always; Placement finds it out only if it comes to it.",
        PARTS,
        lambda exchange: (
            _statuses(400, 200, "GET", "/allocation_candidates|/resource_providers")(exchange)
            and any(phrase.startswith("No such") for phrase in exchange.ours.phrases)
        ),
    ),
    Difference(
        "A group without resources that only forbids, or only names a tree, is a group like any other; Placement finds "
        "nothing for it.",
        ["document"],
        _finds_too_little,
    ),
    Difference(
        "Where several groups take one class, Placement may add the amount of one group to another candidate as well.",
        ["document"],
        _counts_twice,
    ),
    Difference(
        "Placement omits candidates whose amounts it has added up twice, combines a group without a suffix that only "
        "sharing providers serve with the groups of one tree only, and does not let a provider meet one `member_of` by "
        "itself and another one by its root.",
        ["document"],
        _lacks_candidates,
    ),
    Difference(
        "Placement fails where a provider that shares its resources is not the root of its tree.",
        PARTS,
        _statuses(200, 500, "GET", "/allocation_candidates"),
    ),
    Difference(
        "Placement takes a uuid with and without dashes for two aggregates; they are one, as they are for providers.",
        ["document"],
        _spells_aggregates,
    ),
]
