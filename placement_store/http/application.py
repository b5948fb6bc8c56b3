"""The WSGI application: falcon's router and its middleware around the API's resources.

A resource is added in two steps:

1. ``resources/RESOURCE.py``: a :class:`~placement_store.http.operations.Resource` with its ``path``, whose methods
   ``on_get``, ``on_put`` ... are declared with :class:`~placement_store.http.operations.DeclaredOperation`: policy
   rule, first version, the JSON schemas of its body and query (as :class:`~placement_store.http.schemas.Schemas` by
   microversion), and the status of those errors of the store that differ from the default. Before such a method runs,
   version, media type, policy, query and body have been checked. It calls functions of the store in
   ``self.store.read`` or ``self.store.once_without_id`` and returns an
   :class:`~placement_store.http.operations.OperationResult`; it does not catch the store's errors
   (:mod:`placement_store.http.errors` has the table of their statuses and codes) and raises
   :class:`~placement_store.http.refusals.HTTPRefusal` for errors that concern only HTTP.
2. ``resources/__init__.py``: its class in the list.
"""

import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import falcon
from oslo_config import cfg
from oslo_middleware import cors, http_proxy_to_wsgi

from moorage import context, metrics
from moorage.db.database import Database
from placement_store.dispatcher import Dispatcher
from placement_store.http import errors as error_documents
from placement_store.http import identity, versions
from placement_store.http.operations import DEADLINE, Resource, readable_accept
from placement_store.http.phrases import Phrase, before
from placement_store.http.policy import PolicyEnforcer
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.resources import RESOURCES

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Openstack-Request-Id"
_REQUEST_ID = re.compile(r"req-[0-9A-Fa-f-]{36}")
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE"})
_CORS_DEFAULTS = {
    "allow_headers": ["X-Auth-Token", "X-Roles", versions.HEADER, REQUEST_ID_HEADER],
    "expose_headers": [versions.HEADER, REQUEST_ID_HEADER, "Location"],
    "allow_methods": ["GET", "POST", "PUT", "DELETE"],
}


def application(
    conf: cfg.ConfigOpts, database: Database, prepare: Callable[[], object] = lambda: None
) -> "WSGIApplication":
    """Build the API on a database, as configured.

    :param prepare: called before each operation except that of the root; its errors are sent as answers.
    :raises ConfigurationError: the policy file is invalid, or the middleware of Keystone is needed and cannot be used.
    """
    by_keystone = conf.placement_api.auth_strategy == "keystone"
    app = falcon.App(middleware=[_Preparation(identity.of_keystone if by_keystone else identity.of_token, prepare)])
    # A response without a body has no media type, and a response with a body sets its own.
    app.resp_options.default_media_type = None  # type: ignore[assignment]
    app.req_options.keep_blank_qs_values = True
    error_documents.install(app)
    store, authorize = Dispatcher(database), PolicyEnforcer(conf).authorize
    for resource in RESOURCES:
        app.add_route(resource.path, resource(store, authorize, conf.placement_api))
    served: WSGIApplication = identity.behind_keystone(app, conf) if by_keystone else app
    return _with_request_ids(_behind_front_ends(served, conf))


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of the middleware, with Moorage's defaults."""
    conf.register_opts(http_proxy_to_wsgi.OPTS, group="oslo_middleware")
    conf.register_opts(cors.OPTS, group="cors")
    for name, value in _CORS_DEFAULTS.items():
        conf.set_default(name, value, group="cors")


def set_library_defaults() -> None:
    """Set Moorage's defaults of the middleware's options, for the sample configuration."""
    cors.set_defaults(**_CORS_DEFAULTS)


def record_unread(status: int, detail: str, peer: str) -> None:
    """Count and log a request that was refused before the application got it."""
    metrics.HTTP_REQUESTS.labels("other", "other", str(status)).inc()
    # Such a request may be arbitrary bytes, parts of which are in the detail.
    LOG.info("A request that cannot be read: %s, %.500a, from %s", status, detail, peer)


def _behind_front_ends(served: "WSGIApplication", conf: cfg.ConfigOpts) -> "WSGIApplication":
    """Wrap the application in CORS and in the parsing of proxy headers, if they are configured."""
    register_options(conf)
    # Middleware that is not configured would only cost time in every request.
    if conf.oslo_middleware.enable_proxy_headers_parsing:
        served = http_proxy_to_wsgi.HTTPProxyToWSGI(served, conf)
    return cors.CORS(served, conf) if conf.cors.allowed_origin else served


def new_request_id() -> str:
    """Create an id in the form in which OpenStack's clients expect it."""
    return f"req-{uuid.uuid4()}"


def _with_request_ids(served: "WSGIApplication") -> "WSGIApplication":
    """Give each request an id, which all its log lines have, those of the middleware and of the errors included."""

    def identified(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with context.bound(request_id=new_request_id()):
            return served(environ, start_response)

    return identified


class _Preparation:
    """Middleware before each operation, and on each response."""

    def __init__(self, caller: Any, prepare: Callable[[], object]) -> None:
        self._identify = caller
        self._prepare = prepare

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        """Determine the version of the request, and its caller."""
        request.context.began = time.perf_counter()
        request.context.request_id = context.current().request_id
        request.context.version = versions.negotiate(request.headers)
        request.env["HTTP_ACCEPT"] = readable_accept(request.accept)
        request.context.caller = None if request.path == "/" else self._identify(request)
        if time.monotonic() > request.env.get(DEADLINE, math.inf):
            raise HTTPRefusal(503, "The request has waited too long for a thread; nothing was done.")
        if request.content_length and not request.content_type:
            raise HTTPRefusal(400, before("There is a body.", [Phrase.NEEDS_CONTENT_TYPE]))

    def process_resource(
        self, request: falcon.Request, _response: falcon.Response, resource: Resource, path: dict[str, str]
    ) -> None:
        """Refuse methods that a path has in no version; without this, falcon would answer OPTIONS."""
        if "" in path.values():
            raise HTTPRefusal(404, "There is nothing at this path.")
        if request.method not in resource.operations:
            headers = {"Allow": ", ".join(resource.methods())}
            raise HTTPRefusal(405, f"The method {request.method} is {Phrase.METHOD.about()}.", headers=headers)
        if resource.path != "/":
            self._prepare()

    def process_response(
        self, request: falcon.Request, response: falcon.Response, _resource: Resource | None, _succeeded: bool
    ) -> None:
        """Count and log the response, and add headers: the version that was used, and the request id of the log."""
        seconds = time.perf_counter() - request.context.began
        _count(request, response, seconds)
        _log(request, response, seconds)
        response.append_header("Vary", versions.HEADER.lower())
        if (version := request.context.get("version")) is not None:
            response.set_header(versions.HEADER, f"{versions.SERVICE} {version}")
        response.set_header(REQUEST_ID_HEADER, request.context.request_id)


def _count(request: falcon.Request, response: falcon.Response, seconds: float) -> None:
    # Clients may send paths and methods that do not exist: these must not become values of labels.
    path = request.uri_template
    method = request.method if path is not None and request.method in _METHODS else "other"
    metrics.HTTP_SECONDS.labels(method, path or "other").observe(seconds)
    metrics.HTTP_REQUESTS.labels(method, path or "other", str(response.status_code)).inc()


def _log(request: falcon.Request, response: falcon.Response, seconds: float) -> None:
    if not LOG.isEnabledFor(logging.INFO):
        return
    # Nova and others send their own request id in the header that answers have: the id of the order from outside.
    sent = request.get_header(REQUEST_ID_HEADER) or ""
    LOG.info(
        "%s %s: %s, version %s, %.1f ms, from %s%s",
        request.method,
        error_documents.printable_uri(request),
        response.status_code,
        request.context.get("version", "-"),
        1000 * seconds,
        request.remote_addr,
        f", for {sent}" if _REQUEST_ID.fullmatch(sent) else "",
    )
