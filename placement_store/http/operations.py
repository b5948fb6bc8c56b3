"""Declare the API's operations: the checks before one runs, its arguments, and how its result is written."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

import falcon
import msgspec
from oslo_context.context import RequestContext

from moorage import context, errors, tracing
from placement_store.dispatcher import Dispatcher
from placement_store.http.errors import ErrorAnswers
from placement_store.http.phrases import Phrase, before
from placement_store.http.query import Query, canonical_uuid
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.schemas import Schemas
from placement_store.http.versions import MIN, Version, v

P = ParamSpec("P")
N = TypeVar("N", bound="Resource")

#: Checks that a policy rule allows a caller to act on an object with these attributes.
Authorize = Callable[[str, RequestContext, Mapping[str, str | None]], None]

#: The key of the deadline (on ``time.monotonic``) in a request's WSGI environment: after it, no client waits any more.
DEADLINE = "moorage.deadline"
#: Responses have the headers Last-Modified and Cache-Control.
_CACHE_HEADERS_SINCE = v("1.15")
_ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Call:
    """One request as its operation needs it; its body, and the last values of its query, are valid under their schemas.

    :param root: the path under which the API is mounted, without a trailing slash; links begin with it.
    """

    version: Version
    root: str
    query: Query
    last_values: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of an operation, to be written as the response.

    :param body: the body, sent as JSON; null for none.
    :param location: the path of the created resource, below the root of the API.
    :param modified: the last change of the content, in seconds since 1970; null for a response without content.
    """

    status: int = 200
    body: Any = None
    location: str | None = None
    modified: float | None = None


#: An operation that ignores parameters, and one that takes no body.
NO_QUERY, NO_BODY = Schemas({}), Schemas({})


@dataclass(frozen=True)
class DeclaredOperation:
    """Declare a method of a resource to be an operation of the API."""

    #: The policy rule that must allow it; null for an operation that is open to everybody.
    rule: str | None
    #: The first version with this operation; a request of an older version is refused with the status ``below``.
    since: Version = MIN
    below: int = 404
    #: Whether a GET is answered regardless of the media type that the client accepts, as in the published API.
    for_any_accept: bool = False
    #: The schemas of its parameters.
    query: Schemas = NO_QUERY
    #: The schemas of its body; a version without a schema has none.
    body: Schemas = NO_BODY
    #: The query parameters that the policy rule compares.
    target: Sequence[str] = ()
    #: The answers to errors of the store that differ from the default for this operation.
    answers: ErrorAnswers = field(default_factory=dict)

    def __call__(self, work: Callable[Concatenate[N, Call, P], OperationResult]) -> Callable[..., None]:
        """Return the method that falcon calls, with the checks before ``work`` and the response after it."""

        @functools.wraps(work)
        def responder(
            resource: N, request: falcon.Request, response: falcon.Response, *args: P.args, **path: P.kwargs
        ) -> None:
            request.context.answers = self.answers
            with (
                context.bound(
                    deadline=request.env.get(DEADLINE), span=tracing.caller_span(request.get_header("traceparent"))
                ),
                tracing.span(f"{request.method} {resource.path}", kind="server", place="first of request"),
            ):
                call = resource.checked_call(self, request, path)
                answer = work(resource, call, *args, **path)
            _write(answer, call, request, response)

        responder.operation = self  # type: ignore[attr-defined]
        return responder


class Resource:
    """A falcon resource: one path, whose methods are declared with :class:`DeclaredOperation`."""

    #: A falcon URI template, such as ``/resource_providers/{uuid}``.
    path: ClassVar[str]
    #: The declaration of each operation, by HTTP method.
    operations: ClassVar[Mapping[str, DeclaredOperation]] = {}

    def __init_subclass__(cls) -> None:
        cls.operations = {
            name.removeprefix("on_").upper(): responder.operation
            for name, responder in vars(cls).items()
            if name.startswith("on_")
        }

    def __init__(self, store: Dispatcher, authorize: Authorize, settings: Any) -> None:
        self.store = store
        #: The options of group ``placement_api``.
        self.settings = settings
        self._authorize = authorize

    def require_path(self, **_path: str) -> None:
        """Check that the resource at a path exists; by default, do nothing.

        :raises NotFound: it does not exist.
        """

    def checked_call(self, declared: DeclaredOperation, request: falcon.Request, path: dict[str, Any]) -> Call:
        """Return what :meth:`call` returns, and normalize the uuid of a provider in the path.

        A missing resource takes precedence over a bad request (404 over 400).

        :raises HTTPRefusal: this operation does not take such a request.
        :raises NotFound: the resource does not exist.
        """
        try:
            call = self.call(declared, request)
        except HTTPRefusal as refusal:
            if refusal.status == HTTPStatus.BAD_REQUEST:
                _normalize(path)
                self.require_path(**path)
            raise
        _normalize(path)
        return call

    def call(self, declared: DeclaredOperation, request: falcon.Request) -> Call:
        """Check a request before its operation runs, and return the call for the operation.

        The order of the checks decides on the status of a request with several faults: version, Accept, Content-Type,
        policy, query, body.

        :raises HTTPRefusal: this operation does not take such a request.
        """
        version: Version = request.context.version
        if version < declared.since:
            headers = {"Allow": ", ".join(self.methods(version))} if declared.below == 405 else {}
            sentence = f"Not in microversion {version}; it came with {declared.since}."
            phrases = [Phrase.METHOD] if declared.below == 405 else []
            raise HTTPRefusal(declared.below, before(sentence, phrases), headers=headers)
        if request.method == "GET" and not declared.for_any_accept and not request.client_accepts(falcon.MEDIA_JSON):
            raise HTTPRefusal(406, Phrase.ONLY_JSON.about())
        takes_body = declared.body.schema_at(version) is not None
        if takes_body:
            _check_content_type(request)
        query = {name: [one] if isinstance(one, str) else one for name, one in request.params.items()}
        last_values = {name: values[-1] for name, values in query.items()}
        if declared.rule is not None:
            target = {name: last_values.get(name) for name in declared.target}
            self._authorize(declared.rule, request.context.caller, target)
        if declared.query.schema_at(version) is not None:
            _check_encoding(request.query_string)
        declared.query.check(version, last_values, Phrase.INVALID_QUERY)
        body = None
        if takes_body:
            body = _decoded(_read(request, self.settings.max_body_bytes))
            declared.body.check(version, body, Phrase.INVALID_JSON)
        return Call(version, request.root_path, query, last_values, body)

    @classmethod
    def methods(cls, version: Version | None = None) -> list[str]:
        """Return the methods of this path, or those that a version has."""
        return sorted(name for name, one in cls.operations.items() if version is None or one.since <= version)


# --- Reading a request ----------------------------------------------------------------------------------------------


def _normalize(path: dict[str, Any]) -> None:
    """Write the uuid of a provider, if the path has one, in small letters; other spellings are not found."""
    if "uuid" in path:
        uuid = path["uuid"].lower()
        if canonical_uuid(uuid) != uuid:
            raise errors.ProviderNotFound(name=path["uuid"])
        path["uuid"] = uuid


def readable_accept(sent: str) -> str:
    """Return an Accept header in a form that falcon reads; a malformed one accepts anything, as in the published API.

    HTTP allows names of media types in any case, and lists with empty elements.
    """
    if sent in (falcon.MEDIA_JSON, _ANYTHING):
        return sent
    accept = ",".join(filter(None, (part.strip() for part in sent.lower().split(","))))
    try:
        falcon.mediatypes.quality(falcon.MEDIA_JSON, accept)
    except falcon.InvalidMediaType:
        return _ANYTHING
    return accept


def _check_encoding(query: str) -> None:
    """Refuse a query that is not text: falcon would replace the bytes that are none."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError as fault:
        raise HTTPRefusal(400, before(f"{fault}.", [Phrase.INVALID_QUERY])) from fault


def _check_content_type(request: falcon.Request) -> None:
    sent = (request.content_type or "").partition(";")[0].strip().lower()
    if sent != falcon.MEDIA_JSON:
        raise HTTPRefusal(415, Phrase.MEDIA_TYPE.about(sent=sent or None))


def _read(request: falcon.Request, at_most: int) -> bytes:
    # A server that decodes chunked bodies marks its stream as terminated; any other stream may be read only as far as
    # the Content-Length.
    stream = request.stream if request.env.get("wsgi.input_terminated") else request.bounded_stream
    body: bytes = b"" if (request.content_length or 0) > at_most else stream.read(at_most + 1)
    if len(body) > at_most or (request.content_length or 0) > at_most:
        raise HTTPRefusal(413, too_long(at_most))
    return body


def too_long(at_most: int) -> str:
    """Describe the limit of bodies, for the refusal of one that exceeds it."""
    return f"A body has at most {at_most} bytes."


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    # A byte that is not UTF-8 raises ValueError.
    except (msgspec.DecodeError, RecursionError, ValueError) as fault:
        raise HTTPRefusal(400, f"{Phrase.MALFORMED_JSON.about()} {fault}") from fault


# --- Writing a response ---------------------------------------------------------------------------------------------


_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _prefix(request: falcon.Request) -> str:
    """Return the outer address of the API, without the default port of its scheme; its path if no host was named."""
    # An old client may leave the host out, and the server does not know under which name it is reached.
    if not request.env.get("HTTP_HOST"):
        return request.root_path
    netloc = request.netloc.removesuffix(_DEFAULT_PORTS.get(request.scheme, ""))
    return f"{request.scheme}://{netloc}{request.root_path}"


def _write(answer: OperationResult, call: Call, request: falcon.Request, response: falcon.Response) -> None:
    response.status = answer.status
    if answer.body is not None:
        response.content_type = falcon.MEDIA_JSON
        response.data = msgspec.json.encode(answer.body)
    if answer.location is not None:
        response.set_header("Location", f"{_prefix(request)}{answer.location}")
    if answer.modified is not None and call.version >= _CACHE_HEADERS_SINCE:
        response.set_header("Last-Modified", formatdate(answer.modified, usegmt=True))
        response.set_header("Cache-Control", "no-cache")
