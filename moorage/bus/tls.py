"""TLS and the login to RabbitMQ, by the bus library's options, for connections that are not its own; and refusals."""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import amqp
from oslo_config import cfg, types

from moorage import errors

#: The options that the end of a URL may have instead of the group ``oslo_messaging_rabbit``, but for the version.
OPTIONS = frozenset(("ssl", "ssl_ca_file", "ssl_cert_file", "ssl_key_file", "rabbit_login_method"))
#: As the library names versions.
_VERSIONS = {
    name.removeprefix("PROTOCOL_").lower(): getattr(ssl, name) for name in dir(ssl) if name.startswith("PROTOCOL_")
}


def arguments(group: cfg.ConfigOpts.GroupAttr, query: Mapping[str, str], host: str) -> dict[str, Any]:
    """Return py-amqp's arguments for TLS and the login, as the bus library gives them.

    With a file of certificate authorities the broker's certificate has to be of one of them and to name ``host``;
    without one, of an authority that the machine trusts.

    :param query: the options at the end of the URL, which win over the group's.
    :raises OSError: a file cannot be read or is not what it should be.
    :raises ConfigurationError: an option has a wrong value.
    """

    def value(name: str) -> Any:
        return query[name] if name in query else group[name]

    login = value("rabbit_login_method")
    if not _is_true(value("ssl")):
        return {"login_method": login}
    tls: dict[str, Any] = {}
    if version := value("ssl_version"):
        try:
            tls["ssl_version"] = _VERSIONS[version.lower()]
        except KeyError:
            raise errors.ConfigurationError(reason=f"[oslo_messaging_rabbit] ssl_version: {version}") from None
    files = {"keyfile": value("ssl_key_file"), "certfile": value("ssl_cert_file"), "ca_certs": value("ssl_ca_file")}
    tls |= {name: file for name, file in files.items() if file}
    if "ca_certs" in tls:
        tls |= {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": host}
    _read(tls)
    return {"login_method": login, "ssl": tls or True}


def is_refusal(fault: object) -> bool:
    """Return whether a broker refuses a user, a password, a virtual host or a queue, and would the next time as well.

    Where a limit of connections or queues is reached, it gives the same code, but may accept the next try: only its
    text tells the two apart.
    """
    if not isinstance(fault, amqp.exceptions.IrrecoverableChannelError | amqp.exceptions.NotAllowed):
        return False
    return "limit" not in re.sub("'[^']*'", "", str(fault))  # apart from the names


def drop(connection: Any) -> None:
    """Close a connection of kombu without AMQP's closing hand-shake, for which a silent broker would be waited for.

    TLS has one as well: its end is written, and the broker's is not read.
    """
    with suppress(AttributeError, OSError):  # it is closed already
        connection._connection._transport.sock.settimeout(0)  # noqa: SLF001 - the public properties would connect
    connection.collect()


def _is_true(said: Any) -> bool:
    try:
        return bool(types.Boolean()(said))
    except ValueError as fault:
        raise errors.ConfigurationError(reason=f"[oslo_messaging_rabbit] ssl: {fault}") from None


def _read(tls: Mapping[str, Any]) -> None:
    """Read the files, since the faults of a hand-shake do not name them.

    :raises OSError: one of them is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        files = tls.get("ca_certs", "")
        if files:
            context.load_verify_locations(files)
        if "certfile" in tls:
            files = ", ".join(tls[name] for name in ("certfile", "keyfile") if name in tls)
            # With a password, though a wrong one: without any, OpenSSL would ask for that of a key on the terminal.
            context.load_cert_chain(tls["certfile"], tls.get("keyfile"), password="")
    except OSError as fault:
        raise OSError(f"its TLS cannot be set up ({files}): {fault}") from fault
