"""Send each request to both servers, and compare their answers and their states."""

import json
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import webob

from placement_store.http.phrases import Phrase
from support.http.differential.servers import Generations, Server
from support.http.differential.world import Generation, Request

#: Headers whose values are compared, and headers of which only the presence is compared.
_HEADERS, _PRESENT = (
    ("openstack-api-version", "vary", "cache-control", "location", "content-type", "allow"),
    "last-modified",
)


@dataclass(frozen=True)
class Reply:
    """The comparable form of one server's answer, with the change of each generation."""

    status: int
    headers: Mapping[str, str]
    document: Any
    details: Sequence[str]
    phrases: Sequence[str]
    providers: Mapping[str, int | None]
    consumers: Mapping[str, int | None]
    #: The providers whose allocations have changed.
    reallocated: Collection[str]
    text: str


#: The parts of a reply that are compared.
PARTS = ("status", "headers", "document", "phrases", "providers", "consumers")


@dataclass(frozen=True)
class Exchange:
    """One request with both replies, and their differences by the name of the part."""

    request: Request
    ours: Reply
    theirs: Reply

    @property
    def differing(self) -> dict[str, tuple[Any, Any]]:
        """Return the parts that differ by their names, ours first."""
        both = {part: (getattr(self.ours, part), getattr(self.theirs, part)) for part in PARTS}
        return {part: values for part, values in both.items() if values[0] != values[1]}

    @property
    def parts_ways(self) -> bool:
        """Return whether the two stores now differ, so that later answers cannot be compared."""
        done = [reply.status < HTTPStatus.BAD_REQUEST for reply in (self.ours, self.theirs)]
        return self.request.method != "GET" and (done[0] != done[1] or "consumers" in self.differing)

    def told(self) -> str:
        """Describe the exchange for a developer."""
        lines = [f"{part}: ours {own}, Placement's {other}" for part, (own, other) in self.differing.items()]
        return "\n".join([str(self.request), *lines, f"ours: {self.ours.text}", f"Placement's: {self.theirs.text}"])


class Pair:
    """Both servers."""

    def __init__(self, ours: Server, theirs: Server) -> None:
        self.ours, self.theirs = ours, theirs

    def empty(self) -> None:
        """Delete everything but the standard names on both servers."""
        self.ours.empty()
        self.theirs.empty()

    def ask(self, request: Request) -> Iterator[Exchange]:
        """Send a request to both, and a limited one also without limit, because any candidates may be omitted."""
        ours, theirs = _reply(self.ours, request), _reply(self.theirs, request, _LEFT_BEHIND)
        if not request.is_limited or ours.status != 200 or theirs.status != 200:
            yield Exchange(request, ours, theirs)
            return
        whole = replace(request, query=tuple(one for one in request.query if one[0] != "limit"))
        for exchange in self.ask(whole):
            known = exchange.theirs.document["allocation_requests"]
            yield Exchange(request, _counted(ours, known), _counted(theirs, known))
            yield exchange


def _counted(reply: Reply, known: Sequence[Any]) -> Reply:
    """Return a limited answer as its number of candidates, and those that the unlimited answer lacks."""
    found = reply.document["allocation_requests"]
    return replace(reply, document=(len(found), [one for one in found if one not in known]))


#: Placement keeps consumers without allocations, which would affect later requests.
_LEFT_BEHIND = "DELETE FROM consumers WHERE uuid NOT IN (SELECT consumer_id FROM allocations)"


def _reply(server: Server, request: Request, tidy: str | None = None) -> Reply:
    before, allocated = server.generations(), server.allocations()
    body = request.body
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(_resolved(body, before)).encode()
    answer = server.ask(request.method, request.url, request.version, body, request.headers)
    if tidy is not None:
        server.execute(tidy)
    after, allocated_after = server.generations(), server.allocations()
    document, details = _document(answer, request, before)
    return Reply(
        status=answer.status_int,
        headers={
            **{name: _header(name, answer.headers[name]) for name in _HEADERS if name in answer.headers},
            **({_PRESENT: "sent"} if _PRESENT in answer.headers else {}),
        },
        document=document,
        details=details,
        phrases=phrases_in(" ".join(details)),
        providers=_changes(before.providers, after.providers),
        consumers=_changes(before.consumers, after.consumers),
        reallocated={
            uuid for uuid in {*allocated, *allocated_after} if allocated.get(uuid) != allocated_after.get(uuid)
        },
        text=answer.text,
    )


def _header(name: str, value: str) -> str:
    # The allowed methods may come in any order.
    return ", ".join(sorted(value.split(", "))) if name == "allow" else value


def _resolved(body: Any, before: Generations) -> Any:
    if isinstance(body, Generation):
        known = {**before.providers, **before.consumers}.get(body.uuid)
        return (None if known is None else known + body.plus) if body.plus == 0 else (known or 0) + body.plus
    if isinstance(body, dict):
        return {name: _resolved(one, before) for name, one in body.items()}
    return [_resolved(one, before) for one in body] if isinstance(body, list) else body


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int | None]:
    """Return the change of each generation; null if it is gone, its value plus one if it is new."""
    changed: dict[str, int | None] = {
        uuid: g - before.get(uuid, -1) for uuid, g in after.items() if before.get(uuid) != g
    }
    return changed | dict.fromkeys(before.keys() - after.keys())


# --- Documents ------------------------------------------------------------------------------------------------------

_IN_PATH = re.compile(r"/resource_providers/([^/]+)|/allocations/([^/]+)")


def _document(answer: webob.Response, request: Request, before: Generations) -> tuple[Any, Sequence[str]]:
    """Return the document without the parts that are specific to one server, and the details of its errors."""
    if not answer.body:
        return None, ()
    try:
        sent = json.loads(answer.body)
    except ValueError:
        return "no JSON", (answer.text,)
    if isinstance(sent, dict) and "errors" in sent:
        own = ("detail", "request_id")
        return [{n: v for n, v in one.items() if n not in own} for one in sent["errors"]], [
            e["detail"] for e in sent["errors"]
        ]
    known = {**before.providers, **before.consumers}
    named = _IN_PATH.search(request.path)
    return _comparable(sent, next((one for one in (named.groups() if named else ()) if one), ""), known), ()


def _comparable(value: Any, about: str, known: Mapping[str, int]) -> Any:
    """Return a value with each generation as its increase in this request, and with lists in a fixed order.

    :param about: the uuid of the object that the value belongs to.
    """
    if isinstance(value, dict):
        about = value.get("uuid", about)
        found = {}
        for name, one in value.items():
            if name.endswith("generation") and isinstance(one, int):
                found[name] = one - known.get(about, 0)
            else:
                found[name] = _comparable(one, name if name in known else about, known)
        return found
    if isinstance(value, list):
        return sorted(
            (_comparable(one, about, known) for one in value), key=lambda one: json.dumps(one, sort_keys=True)
        )
    return value


# --- Phrases --------------------------------------------------------------------------------------------------------


def _pattern(phrase: Phrase) -> re.Pattern[str]:
    """Return a pattern that matches a phrase with any data."""
    fields = dict.fromkeys((name for _, name, _, _ in string.Formatter().parse(phrase.template) if name), "MARK")
    literal = re.escape(phrase.about(**fields)).replace("MARK", "(.+?)").removesuffix(re.escape("."))
    return re.compile(literal + (r"(?=[\s.:;]|$)" if phrase.template.rstrip(".").endswith("}") else ""))


_PATTERNS = {phrase: _pattern(phrase) for phrase in Phrase}


def phrases_in(details: str) -> list[str]:
    """Return all phrases of the product's table in the details of errors, with their data."""
    plain = " ".join(details.split())
    found = (match for pattern in _PATTERNS.values() for match in pattern.finditer(plain))
    # If the data are empty, only the full stop is left.
    return sorted({match[0] for match in found if not match.lastindex or match[match.lastindex].strip(".")})
