"""The part of the configuration that a command needs to call services, read without the bus library and its options.

To import the library takes longer than a call. Services, and commands that open a bus in the same way, read the whole
configuration (:func:`moorage.config.options.new`).
"""

from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from moorage.config import options, unknown

EXCHANGE = "moorage"
#: The ways to log in that the AMQP library knows, and that need no further library.
LOGINS = ("PLAIN", "AMQPLAIN", "EXTERNAL")
#: The options of the bus library that are read here, by group, with Moorage's defaults.
_BUS: dict[str | None, list[cfg.Opt]] = {
    None: [cfg.StrOpt("transport_url", secret=True), cfg.StrOpt("control_exchange", default=EXCHANGE)],
    "oslo_messaging_rabbit": [
        cfg.BoolOpt("ssl", default=False),
        *(cfg.StrOpt(f"ssl_{name}", default="") for name in ("version", "key_file", "cert_file", "ca_file")),
        cfg.StrOpt("kombu_compression"),
        cfg.StrOpt("rabbit_login_method", default="AMQPLAIN"),
    ],
}


def read(files: Sequence[Path]) -> cfg.ConfigOpts:
    """Return the options of Moorage, and the options of the bus library that name the broker.

    Unknown options are refused in Moorage's own groups. The services check the groups of libraries.

    :raises ConfigurationError: a file cannot be read, has an unknown option or section, or a wrong value.
    """
    conf = cfg.ConfigOpts()
    for group, listed in [*_BUS.items(), *options.GROUPS.items()]:
        conf.register_opts(listed, group=group)
    return options.filled(conf, files, unread=unknown.OF_THE_BUS)


def is_direct(conf: cfg.ConfigOpts) -> bool:
    """Return whether calls need no feature that only the bus library has, for instance compression."""
    rabbit = conf.oslo_messaging_rabbit
    return rabbit.kombu_compression is None and rabbit.rabbit_login_method in LOGINS
