"""The options of oslo.messaging with our defaults, and its first import, with the threading backend."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg

from moorage.config.calls import EXCHANGE

# Some of these import eventlet if it is installed, whose resolver alone takes longer to import than all the rest.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

with warnings.catch_warnings():
    # Some of these import eventlet if it is installed, which logs a long warning about its deprecation. Nothing here
    # uses it, and the operator cannot act on the warning.
    warnings.simplefilter("ignore")

    from oslo_service import backend

    # At its own import oslo.messaging settles for eventlet unless the choice has been made, and it cannot be made
    # twice. Every module of ours that imports the library imports this one first.
    backend.init_backend(backend.BackendType.THREADING)

    from oslo_messaging import opts as oslo_messaging_opts
    from oslo_messaging._drivers import impl_rabbit  # noqa: F401 - loaded by name later, and would warn then
    from oslo_messaging._metrics import client as oslo_messaging_metrics
    from oslo_messaging._tracing import client as oslo_messaging_tracing


#: Our defaults where they differ from the library's: a caller gets an error within seconds if the broker is away; a
#: reply to a lost caller keeps a server thread no longer than the caller would have waited; and a server gets no
#: further message before it has read its last one. The library reads messages as soon as they come, so the last bounds
#: the messages lost in a stopped process, and not those handled at a time.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DEFAULT": {
        "control_exchange": EXCHANGE,
        # The library's default is a broker on this machine, with a well-known password.
        "transport_url": None,
    },
    "oslo_messaging_rabbit": {
        "rabbit_retry_backoff": 1,
        "rabbit_interval_max": 3,
        "kombu_reconnect_delay": 0.2,
        "kombu_missing_consumer_retry_timeout": 15,
        # A silent connection is detected after twice as long.
        "heartbeat_timeout_threshold": 10,
        "rabbit_qos_prefetch_count": 1,
    },
}

#: The options of oslo.messaging by group: its own objects, not the copies that it lists. It registers them again for
#: each connection, and refuses copies in which it has marked a deprecation as logged.
_LIBRARY_OPTIONS: Sequence[tuple[str | None, Sequence[cfg.Opt]]] = oslo_messaging_opts._opts  # noqa: SLF001


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register on a private configuration all options that oslo.messaging expects of the global one, with our defaults.

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
    """Replace the library's defaults by ours in the whole process; used for the sample configuration."""
    for group, options in _LIBRARY_OPTIONS:
        cfg.set_defaults(options, **_DEFAULTS.get(group or "DEFAULT", {}))
