"""Translate errors to HTTP: the status and code of each error of the store, and the error document."""

import http
import logging
from collections.abc import Mapping
from typing import Any

import falcon
import msgspec

from moorage import errors
from placement_store.http import refusals
from placement_store.http.refusals import UNDEFINED, HTTPRefusal
from placement_store.http.versions import MIN, Version, v

LOG = logging.getLogger(__name__)

#: The status and code of errors of the store, by class.
ErrorStatuses = Mapping[type[errors.MoorageError], tuple[int, str]]

#: The default for operations that declare nothing else. The nearest class of an error counts.
DEFAULT: ErrorStatuses = {
    errors.MoorageError: (500, UNDEFINED),
    errors.CallerError: (400, UNDEFINED),
    errors.NotFound: (404, UNDEFINED),
    errors.AlreadyExists: (409, refusals.DUPLICATE_NAME),
    errors.NameInUse: (409, UNDEFINED),
    errors.StaleView: (409, refusals.CONCURRENT_UPDATE),
    errors.TryAgain: (409, refusals.CONCURRENT_UPDATE),
    errors.PlacementRefused: (409, UNDEFINED),
    errors.InvalidInventory: (400, UNDEFINED),
    errors.InventoryInUse: (409, refusals.INVENTORY_IN_USE),
    errors.ProviderInUse: (409, refusals.PROVIDER_IN_USE),
    errors.ProviderHasChildren: (409, refusals.PROVIDER_HAS_CHILDREN),
    errors.Unavailable: (503, UNDEFINED),
    errors.SchemaMismatch: (503, UNDEFINED),
}

#: For operations to which an unknown provider, class or trait is a fault of the request: 400, not 404.
BAD_NAME: ErrorStatuses = {errors.NotFound: (400, UNDEFINED)}

_CODES_SINCE = v("1.23")


def refusal_of(fault: errors.MoorageError, own: ErrorStatuses) -> HTTPRefusal:
    """Translate an error of the store to a refusal, by the operation's ``own`` table first, then by the default."""
    for table in (own, DEFAULT):
        for kind in type(fault).__mro__:
            if kind in table:
                status, code = table[kind]
                return HTTPRefusal(status, str(fault), code)
    raise AssertionError("the table has the root of the tree")


def install(app: "falcon.App[Any, Any]") -> None:
    """Answer each exception of an operation, or of the router, with an error document."""
    app.add_error_handler(Exception, _unexpected)
    app.add_error_handler(falcon.HTTPError, _of_router)
    app.add_error_handler(errors.MoorageError, _of_store)
    app.add_error_handler(HTTPRefusal, _refused)


def _refused(request: falcon.Request, response: falcon.Response, fault: HTTPRefusal, _params: Any) -> None:
    described: dict[str, Any] = {
        "status": fault.status,
        "title": http.HTTPStatus(fault.status).phrase,
        "detail": fault.detail,
        "request_id": request.context.get("request_id", ""),
    }
    version: Version = request.context.get("version") or MIN
    if version >= _CODES_SINCE:
        described["code"] = fault.code
    response.status = fault.status
    response.content_type = falcon.MEDIA_JSON
    response.data = msgspec.json.encode({"errors": [{**described, **fault.extra}]})
    for name, value in fault.headers.items():
        response.set_header(name, value)


def _of_store(request: falcon.Request, response: falcon.Response, fault: errors.MoorageError, params: Any) -> None:
    if not isinstance(fault, errors.CallerError | errors.PlacementRefused | errors.StaleView | errors.TryAgain):
        LOG.warning("%s %s: %s", request.method, request.path, fault)
    _refused(request, response, refusal_of(fault, request.context.get("error_status") or {}), params)


def _of_router(request: falcon.Request, response: falcon.Response, fault: falcon.HTTPError, params: Any) -> None:
    sentences = {
        404: "The resource could not be found: there is nothing at this path.",
        405: f"The method {request.method} is not allowed for this resource.",
    }
    detail = sentences.get(fault.status_code) or fault.description or fault.title or ""
    refusal = HTTPRefusal(fault.status_code, detail, headers=dict(fault.headers or {}))
    _refused(request, response, refusal, params)


def _unexpected(request: falcon.Request, response: falcon.Response, fault: Exception, params: Any) -> None:
    LOG.error("%s %s has failed", request.method, request.path, exc_info=fault)
    refusal = HTTPRefusal(500, "An unexpected fault: the log has it by the request id.")
    _refused(request, response, refusal, params)
