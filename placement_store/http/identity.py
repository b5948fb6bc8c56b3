"""Authenticate callers: by a token that is not verified (``noauth2``), or by Keystone's middleware."""

from typing import TYPE_CHECKING, Any

import falcon
from oslo_config import cfg
from oslo_context.context import RequestContext

from moorage.errors import ConfigurationError
from moorage.service.probes import route
from placement_store.http.refusals import HTTPRefusal

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


#: The group of the middleware's options.
_KEYSTONE = "keystone_authtoken"


class CallerContext(RequestContext):
    """The caller of a request, for the policy.

    oslo.context stores the first context of a thread as the thread's own, and oslo.log would then write its request id
    onto every later line of that thread. Here only :mod:`moorage.context` holds the request that a thread serves.
    """

    def update_store(self) -> None:
        """Store nothing in the thread."""


def of_token(request: falcon.Request) -> RequestContext:
    """Return the caller in ``X-Auth-Token: USER[:PROJECT]``, without verification: for tests and small installations.

    The user ``admin`` has the role of that name. The headers ``X-Roles`` and ``X-Project-Id`` override roles and
    project; with ``OpenStack-System-Scope`` the token has the scope of the whole system.

    :raises HTTPRefusal: 401, the header is missing.
    """
    token = request.get_header("X-Auth-Token")
    if not token:
        raise HTTPRefusal(401, "This path needs a token.")
    user, _, project = token.partition(":")
    roles = request.get_header("X-Roles")
    return CallerContext(
        user_id=user,
        project_id=request.get_header("X-Project-Id") or project or user,
        system_scope=request.get_header("OpenStack-System-Scope"),
        roles=[role.strip() for role in roles.split(",")] if roles else ["admin"] if user == "admin" else [],
    )


def of_keystone(request: falcon.Request) -> RequestContext:
    """Return the caller that Keystone's middleware, which runs first, has found.

    :raises HTTPRefusal: 401, it has found none.
    """
    caller = CallerContext.from_environ(request.env)
    if caller.user_id is None:
        raise HTTPRefusal(401, "This path needs a token.")
    return caller


def behind_keystone(application: "WSGIApplication", conf: cfg.ConfigOpts) -> "WSGIApplication":
    """Wrap the application, all but its root, in Keystone's middleware, configured in group ``keystone_authtoken``.

    :raises ConfigurationError: see :func:`require_keystone`.
    """
    require_keystone(conf)
    checked = keystone_middleware()(application, {"oslo_config_config": conf})
    return route(lambda path: path in ("", "/"), application, checked)


def keystone_middleware() -> Any:
    """Return the class of Keystone's middleware.

    :raises ConfigurationError: it is not installed.
    """
    try:
        from keystonemiddleware import auth_token  # here, because it is installed only if Keystone is used
    except ImportError as fault:
        raise ConfigurationError(
            reason=f"[placement_api] auth_strategy is keystone, which needs {fault.name}, and that is not installed: "
            "pip install 'moorage[keystone]'"
        ) from fault
    return auth_token.AuthProtocol


def require_keystone(conf: cfg.ConfigOpts) -> None:
    """Check that Keystone's middleware can be used as configured; otherwise it would fail at each request.

    :raises ConfigurationError: it is not installed, or the account by which it verifies tokens is not configured.
    """
    keystone_middleware()
    from keystoneauth1 import exceptions, loading  # here, as the middleware

    loading.register_auth_conf_options(conf, _KEYSTONE)
    try:
        account = loading.load_auth_from_conf_options(conf, _KEYSTONE)
    except (exceptions.ClientException, cfg.Error, ValueError) as fault:
        raise ConfigurationError(reason=f"[{_KEYSTONE}] cannot be used: {fault}") from fault
    if account is None:
        raise ConfigurationError(
            reason=f"[placement_api] auth_strategy is keystone, and [{_KEYSTONE}] auth_type is not set: configure the "
            "account by which tokens are verified, or, for tests, set auth_strategy to noauth2"
        )
