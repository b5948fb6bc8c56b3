"""The part of the configuration that a command needs to call services, read without the bus library and its options.

Importing these takes longer than a call. Services, and the commands that open a bus as services do, read the whole
(:func:`moorage.config.options.new`).
"""

from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from moorage.config import options, unknown

EXCHANGE = "moorage"
#: Of the bus library, by group, with our defaults.
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
    """Return the options of Moorage, and those of the bus library that name the broker.

    Unknown options are refused in our own groups; those of libraries are looked at by the services that read them.

    :raises ConfigurationError: a file cannot be read, has an unknown option or section, or a wrong value.
    """
    conf = cfg.ConfigOpts()
    for group, listed in [*_BUS.items(), *options.GROUPS.items()]:
        conf.register_opts(listed, group=group)
    return options.filled(conf, files, unread=unknown.OF_THE_BUS)


def is_direct(conf: cfg.ConfigOpts) -> bool:
    """Return whether the configuration asks for nothing that the bus library alone can do: compression, say."""
    rabbit = conf.oslo_messaging_rabbit
    return rabbit.kombu_compression is None and rabbit.rabbit_login_method in ("PLAIN", "AMQPLAIN", "EXTERNAL")
