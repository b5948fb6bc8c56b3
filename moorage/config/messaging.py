"""The options of oslo.messaging with Moorage's defaults; and its first import, with the threading backend."""

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg

from moorage.config.calls import EXCHANGE

# Some of these import eventlet if it is installed. Its resolver takes longer to import than everything else.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

with warnings.catch_warnings():
    # Some of these import eventlet if it is installed, which logs a long warning about its deprecation. Nothing here
    # uses it, and the operator cannot act on the warning.
    warnings.simplefilter("ignore")

    from oslo_service import backend

    # At its import oslo.messaging chooses eventlet unless a backend is already chosen, and the choice is final. So
    # every module of Moorage that imports the library imports this module first.
    backend.init_backend(backend.BackendType.THREADING)

    from oslo_messaging import opts as oslo_messaging_opts
    from oslo_messaging._drivers import impl_rabbit  # noqa: F401 - it is loaded by name later, and would log the warning then
    from oslo_messaging._metrics import client as oslo_messaging_metrics
    from oslo_messaging._tracing import client as oslo_messaging_tracing


#: Moorage's defaults that differ from the library's. A caller gets an error within seconds if the broker is
#: unreachable. A reply to a lost caller occupies a server thread no longer than the caller would have waited. A server
#: gets no further message before it has read its last one: because the library reads messages as soon as they arrive,
#: this limits the messages that are lost in a stopped process, and not the number of messages handled at a time.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DEFAULT": {
        "control_exchange": EXCHANGE,
        # The library's default is a broker on this machine with a well-known password.
        "transport_url": None,
    },
    "oslo_messaging_rabbit": {
        "rabbit_retry_backoff": 1,
        "rabbit_interval_max": 3,
        "kombu_reconnect_delay": 0.2,
        "kombu_missing_consumer_retry_timeout": 15,
        # A silent connection is detected after twice this time.
        "heartbeat_timeout_threshold": 10,
        "rabbit_qos_prefetch_count": 1,
    },
}

#: The options of oslo.messaging by group: its own objects, not the copies that it lists. The library registers its
#: objects again for each connection, which fails if a copy is registered and has a deprecation marked as logged.
_LIBRARY_OPTIONS: Sequence[tuple[str | None, Sequence[cfg.Opt]]] = oslo_messaging_opts._opts  # noqa: SLF001


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register the options that oslo.messaging expects on a private configuration, with Moorage's defaults.

    The library registers its options for metrics and tracing only on the global configuration, and does not list them.
    Without them every call fails.
    """
    for group, options in _LIBRARY_OPTIONS:
        conf.register_opts(options, group=group)
    conf.register_opts(oslo_messaging_metrics.oslo_messaging_metrics, group="oslo_messaging_metrics")
    conf.register_opts(oslo_messaging_tracing.oslo_messaging_tracing, group="oslo_messaging_tracing")
    for group, defaults in _DEFAULTS.items():
        for name, value in defaults.items():
            conf.set_default(name, value, group=None if group == "DEFAULT" else group)


def set_library_defaults() -> None:
    """Replace the library's defaults by Moorage's in the whole process; used for the sample configuration."""
    for group, options in _LIBRARY_OPTIONS:
        cfg.set_defaults(options, **_DEFAULTS.get(group or "DEFAULT", {}))
