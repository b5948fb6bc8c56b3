"""The WSGI application: the page's own files, which are open to everybody, and the API behind authentication."""

import uuid
from typing import TYPE_CHECKING, Any

import falcon
from oslo_config import cfg

from dashboard import access, pages
from dashboard.api import RESOURCES, DashboardResource
from dashboard.sources import Sources
from moorage.service.probes import route
from placement_store.http import errors as error_documents
from placement_store.http import identity, versions
from placement_store.http.policy import PolicyEnforcer
from placement_store.http.refusals import HTTPRefusal

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_API = "/api/"
#: Nothing is fetched from another site, the page contains no inline script or style, and no other page may frame it.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(conf: cfg.ConfigOpts, sources: Sources) -> "WSGIApplication":
    """Build the application.

    :raises ConfigurationError: the policy file is invalid, or the middleware of Keystone is needed and cannot be used.
    """
    by_keystone = conf.placement_api.auth_strategy == "keystone"
    identify = identity.of_keystone if by_keystone else identity.of_token
    guard = _Guard(identify, PolicyEnforcer(conf, access.all_rules()))
    api = falcon.App(middleware=[guard])
    error_documents.install(api)
    for resource in RESOURCES:
        api.add_route(resource.path, resource(sources))
    guarded: WSGIApplication = identity.behind_keystone(api, conf) if by_keystone else api
    return route(lambda path: path.startswith(_API), guarded, pages.application(SECURITY_HEADERS))


class _Guard:
    """Middleware before each operation, and on each response."""

    def __init__(self, identify: Any, policy: PolicyEnforcer) -> None:
        self._identify = identify
        self._policy = policy

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        """Give the request an id, and determine its caller."""
        request.context.request_id = f"req-{uuid.uuid4()}"
        # The microversion decides on the form of error documents: in the newest one they have codes.
        request.context.version = versions.MAX
        request.context.caller = self._identify(request)

    def process_resource(
        self, request: falcon.Request, _response: falcon.Response, resource: DashboardResource, _path: dict[str, str]
    ) -> None:
        """Refuse methods that a path does not have, and callers that the policy does not allow.

        OPTIONS is refused here, because falcon itself would answer it.
        """
        if request.method not in resource.rules:
            headers = {"Allow": ", ".join(resource.rules)}
            raise HTTPRefusal(405, f"The method {request.method} is not for this path.", headers=headers)
        self._policy.authorize(resource.rules[request.method], request.context.caller, {})

    def process_response(
        self, request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: bool
    ) -> None:
        """Add the headers that every answer has."""
        response.set_headers(SECURITY_HEADERS)
        response.set_header("Cache-Control", "no-store")
        response.set_header("X-Openstack-Request-Id", request.context.request_id)
