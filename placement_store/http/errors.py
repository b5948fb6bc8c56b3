"""Translate errors to HTTP: the status and code of each error of the store, and the error document."""

import html
import http
import logging
from collections.abc import Mapping
from typing import Any

import falcon
import msgspec

from moorage import errors
from placement_store.http import refusals
from placement_store.http.phrases import Phrase, before
from placement_store.http.refusals import ErrorAnswer, HTTPRefusal
from placement_store.http.versions import MIN, Version, v

LOG = logging.getLogger(__name__)

#: The answers to errors of the store, by class.
ErrorAnswers = Mapping[type[errors.MoorageError], ErrorAnswer]

#: The default for operations that declare nothing else. The nearest base class of an error counts.
DEFAULT: ErrorAnswers = {
    errors.MoorageError: ErrorAnswer(500),
    errors.CallerError: ErrorAnswer(400),
    errors.NotFound: ErrorAnswer(404),
    errors.ProviderNotFound: ErrorAnswer(404, phrases=(Phrase.NO_PROVIDER,)),
    errors.ResourceClassNotFound: ErrorAnswer(404, phrases=(Phrase.NO_CLASS,)),
    errors.TraitNotFound: ErrorAnswer(404, phrases=(Phrase.NO_TRAIT,)),
    errors.ConsumerNotFound: ErrorAnswer(404, phrases=(Phrase.NO_ALLOCATIONS,)),
    errors.InventoryNotFound: ErrorAnswer(404, phrases=(Phrase.NO_INVENTORY,)),
    errors.AlreadyExists: ErrorAnswer(409, refusals.DUPLICATE_NAME, (Phrase.PROVIDER_TAKEN,)),
    errors.NameInUse: ErrorAnswer(409),
    errors.StaleView: ErrorAnswer(409, refusals.CONCURRENT_UPDATE),
    errors.ProviderGenerationConflict: ErrorAnswer(409, refusals.CONCURRENT_UPDATE, (Phrase.PROVIDER_GENERATION,)),
    errors.ConsumerGenerationConflict: ErrorAnswer(409, refusals.CONCURRENT_UPDATE, (Phrase.CONSUMER_GENERATION,)),
    errors.TryAgain: ErrorAnswer(409, refusals.CONCURRENT_UPDATE),
    errors.PlacementRefused: ErrorAnswer(409),
    errors.InvalidInventory: ErrorAnswer(400),
    errors.InventoryInUse: ErrorAnswer(409, refusals.INVENTORY_IN_USE, (Phrase.INVENTORY_IN_USE,)),
    errors.ProviderInUse: ErrorAnswer(409, refusals.PROVIDER_IN_USE, (Phrase.PROVIDER_IN_USE,)),
    errors.ProviderHasChildren: ErrorAnswer(409, refusals.PROVIDER_HAS_CHILDREN, (Phrase.PROVIDER_HAS_CHILDREN,)),
    errors.Unavailable: ErrorAnswer(503),
    errors.SchemaMismatch: ErrorAnswer(503),
}

#: The phrases of a refused allocation by its reason; all other reasons are those of units.
_OF_REASON = {"no inventory": Phrase.NO_INVENTORY_TO_ALLOCATE, "not enough room": Phrase.OVER_CAPACITY}
_HTML = "text/html"
#: The longest path and query of a log line; a query may be thousands of characters long.
_LONGEST_URI = 500
_CODES_SINCE = v("1.23")


def refusal_of(fault: errors.MoorageError, own: ErrorAnswers, path: Mapping[str, str]) -> HTTPRefusal:
    """Translate an error of the store to a refusal, by the operation's ``own`` table first, then by the default.

    :param path: the fields of the request's path, which phrases may name in addition to the error's data.
    """
    kinds = type(fault).__mro__
    status, code, phrases = next(table[kind] for table in (own, DEFAULT) for kind in kinds if kind in table)
    data = {**path, **fault.data}
    if isinstance(fault, errors.ConsumerGenerationConflict) and fault.found is None:
        data["found"] = "null"
    if isinstance(fault, errors.CapacityExceeded):
        reason = str(fault.refusals[0]["reason"])
        phrases = (*phrases, Phrase.NOT_ALLOCATED, _OF_REASON.get(reason, Phrase.AGAINST_UNITS))
    return HTTPRefusal(status, before(str(fault), phrases, **data), code)


def install(app: "falcon.App[Any, Any]") -> None:
    """Answer each exception of an operation, or of the router, with an error document."""
    app.add_error_handler(Exception, _unexpected)
    app.add_error_handler(falcon.HTTPError, _of_router)
    app.add_error_handler(errors.MoorageError, _of_store)
    app.add_error_handler(HTTPRefusal, _refused)


def printable_uri(request: falcon.Request) -> str:
    """Return the path and query of a request for a log line: a path may have line breaks in it."""
    uri = request.relative_uri
    if not (uri.isascii() and uri.isprintable()):
        uri = falcon.uri.encode_check_escaped(uri)
    return uri if len(uri) <= _LONGEST_URI else f"{uri[:_LONGEST_URI]}…"


def _refused(request: falcon.Request, response: falcon.Response, fault: HTTPRefusal, _params: Any) -> None:
    # On a separate line, since osc-placement shows only the last line.
    general = f"{Phrase.NOT_FOUND.about()}\n\n" if fault.status == http.HTTPStatus.NOT_FOUND else ""
    detail = f"{general}{fault.detail}"
    described: dict[str, Any] = {
        "status": fault.status,
        "title": http.HTTPStatus(fault.status).phrase,
        "detail": detail,
        "request_id": request.context.get("request_id", ""),
    }
    version: Version = request.context.get("version") or MIN
    if version >= _CODES_SINCE:
        described["code"] = fault.code
    response.status = fault.status
    # A page is for clients that ask for HTML explicitly, not for those that accept `*/*`.
    offered = [falcon.MEDIA_JSON] if request.accept == "*/*" else [_HTML, falcon.MEDIA_JSON]
    accepted = request.client_prefers(offered)
    response.content_type = f"{accepted or 'text/plain'}; charset=UTF-8"
    if accepted == falcon.MEDIA_JSON:
        response.content_type = falcon.MEDIA_JSON
        response.data = msgspec.json.encode({"errors": [{**described, **fault.extra}]})
    else:
        response.text = _page(described) if accepted else f"{fault.status} {described['title']}\n\n{detail}\n"
    for name, value in fault.headers.items():
        response.set_header(name, value)


def _page(described: Mapping[str, Any]) -> str:
    """Write an error for a browser."""
    title = f"{described['status']} {described['title']}"
    detail = html.escape(described["detail"])
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1>{detail}</body></html>\n"


def _of_store(request: falcon.Request, response: falcon.Response, fault: errors.MoorageError, params: Any) -> None:
    if not isinstance(fault, errors.CallerError | errors.PlacementRefused | errors.StaleView | errors.TryAgain):
        LOG.warning("%s %s: %s", request.method, printable_uri(request), fault)
    _refused(request, response, refusal_of(fault, request.context.get("answers") or {}, params), params)


def _of_router(request: falcon.Request, response: falcon.Response, fault: falcon.HTTPError, params: Any) -> None:
    is_unknown = fault.status_code == http.HTTPStatus.NOT_FOUND
    detail = "There is nothing at this path." if is_unknown else fault.description or fault.title or ""
    # No other header is parsed by falcon.
    if isinstance(fault, falcon.HTTPInvalidHeader):
        detail = before(detail, [Phrase.BAD_LENGTH])
    refusal = HTTPRefusal(fault.status_code, detail, headers=dict(fault.headers or {}))
    _refused(request, response, refusal, params)


def _unexpected(request: falcon.Request, response: falcon.Response, fault: Exception, params: Any) -> None:
    LOG.error("%s %s has failed", request.method, printable_uri(request), exc_info=fault)
    _refused(request, response, HTTPRefusal(500, "An unexpected fault: the log has it by the request id."), params)
