"""Who asks: by a token that is taken at its word (``noauth2``), or by Keystone's."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import falcon
from oslo_config import cfg
from oslo_context.context import RequestContext

from moorage.errors import ConfigurationError
from placement_store.http.refusals import RequestRefused

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class CallerContext(RequestContext):
    """Who asks, for the policy.

    The library keeps the first context that a thread makes as the thread's own, and oslo.log then writes its request id
    onto every later line of that thread. Whom a thread works for is said by :mod:`moorage.context` alone.
    """

    def update_store(self) -> None:
        """Keep nothing."""


def of_token(request: falcon.Request) -> RequestContext:
    """Return the caller that ``X-Auth-Token: USER[:PROJECT]`` names, believing it: for tests and small set-ups.

    The user called ``admin`` has the role of that name. The headers ``X-Roles`` and ``X-Project-Id`` say otherwise;
    with ``OpenStack-System-Scope`` the token is not of the project but of the whole system.

    :raises Refused: 401, there is no such header.
    """
    token = request.get_header("X-Auth-Token")
    if not token:
        raise RequestRefused(401, "This path needs a token.")
    user, _, project = token.partition(":")
    roles = request.get_header("X-Roles")
    return CallerContext(
        user_id=user,
        project_id=request.get_header("X-Project-Id") or project or user,
        system_scope=request.get_header("OpenStack-System-Scope"),
        roles=[role.strip() for role in roles.split(",")] if roles else ["admin"] if user == "admin" else [],
    )


def of_keystone(request: falcon.Request) -> RequestContext:
    """Return the caller that Keystone's middleware, which stands in front, has found the token to be of.

    :raises Refused: 401, it has found nobody.
    """
    who = CallerContext.from_environ(request.env)
    if who.user_id is None:
        raise RequestRefused(401, "This path needs a token.")
    return who


class _OpenRoot:
    """Leaves the path ``/`` to the application, and every other one to Keystone's middleware in front of it."""

    def __init__(self, application: "WSGIApplication", guarded: "WSGIApplication") -> None:
        self._application = application
        self._guarded = guarded

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        is_root = environ.get("PATH_INFO", "") in ("", "/")
        return (self._application if is_root else self._guarded)(environ, start_response)


def behind_keystone(application: "WSGIApplication", conf: cfg.ConfigOpts) -> "WSGIApplication":
    """Return the application behind Keystone's middleware, which is set up in group ``keystone_authtoken``.

    :raises ConfigurationError: it is not installed.
    """
    try:
        from keystonemiddleware import auth_token  # here, because only those who have Keystone install it
    except ImportError as fault:
        raise ConfigurationError(
            reason="[placement_api] auth_strategy is keystone, and keystonemiddleware is not installed; "
            "the extra `keystone` brings it"
        ) from fault
    settings: dict[str, Any] = {"oslo_config_config": conf}
    return _OpenRoot(application, auth_token.AuthProtocol(application, settings))
