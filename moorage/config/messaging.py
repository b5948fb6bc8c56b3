"""The options of oslo.messaging with our defaults, and its first import: it must not settle for eventlet."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg

# Of what some of these import where it is installed, eventlet's resolver alone takes longer than all the rest.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

with warnings.catch_warnings():
    # Some of these import eventlet where it is installed, which says at length that nobody should. Nothing here runs
    # on it, and the operator who reads the warning could do nothing about it.
    warnings.simplefilter("ignore")

    from oslo_service import backend

    # At its own import oslo.messaging settles for eventlet unless the choice has been made, and it cannot be made
    # twice. Every module of ours that imports the library imports this one first.
    backend.init_backend(backend.BackendType.THREADING)

    from oslo_messaging import opts as oslo_messaging_opts
    from oslo_messaging._drivers import impl_rabbit  # noqa: F401 - loaded by name later, and would warn then
    from oslo_messaging._metrics import client as oslo_messaging_metrics
    from oslo_messaging._tracing import client as oslo_messaging_tracing


EXCHANGE = "moorage"

#: Where our needs differ from the library's defaults: a caller hears within seconds that the broker is away; a reply to
#: a caller that is gone keeps no server thread for longer than that caller would have waited; and a server that has not
#: taken its last message in is sent no other. The library takes messages in as soon as they come, so the last bounds
#: what is lost in a process that is stopped, and not how many messages are worked on.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DEFAULT": {
        "control_exchange": EXCHANGE,
        # The library's own default is a broker on this machine, with everybody's password.
        "transport_url": None,
    },
    "oslo_messaging_rabbit": {
        "rabbit_retry_backoff": 1,
        "rabbit_interval_max": 3,
        "kombu_reconnect_delay": 0.2,
        "kombu_missing_consumer_retry_timeout": 15,
        # A connection that has gone silent is found out after twice as long.
        "heartbeat_timeout_threshold": 10,
        "rabbit_qos_prefetch_count": 1,
    },
}

#: The options of oslo.messaging by group: its own objects, not the copies that it lists. It registers them again for
#: each connection, and refuses copies in which it has noted meanwhile that their use is deprecated.
_LIBRARY_OPTIONS: Sequence[tuple[str | None, Sequence[cfg.Opt]]] = oslo_messaging_opts._opts  # noqa: SLF001


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register on a private configuration all that oslo.messaging expects of the global one, with our defaults.

    The library registers metrics and tracing on the global object alone and does not list them; without them every
    call fails.
    """
    for group, options in _LIBRARY_OPTIONS:
        conf.register_opts(options, group=group)
    conf.register_opts(oslo_messaging_metrics.oslo_messaging_metrics, group="oslo_messaging_metrics")
    conf.register_opts(oslo_messaging_tracing.oslo_messaging_tracing, group="oslo_messaging_tracing")
    for group, defaults in _DEFAULTS.items():
        for name, value in defaults.items():
            conf.set_default(name, value, group=None if group == "DEFAULT" else group)


def set_library_defaults() -> None:
    """Put our defaults in the place of the library's own, for the whole process: for the sample configuration."""
    for group, options in _LIBRARY_OPTIONS:
        cfg.set_defaults(options, **_DEFAULTS.get(group or "DEFAULT", {}))
