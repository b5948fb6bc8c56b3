"""TLS and login for RabbitMQ connections outside the bus library, by its options; detection of refused logins."""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import amqp
from oslo_config import cfg, types

from moorage import errors
from moorage.config.calls import LOGINS

#: The options of the group ``oslo_messaging_rabbit`` that a URL may also have at its end, except for the TLS version.
OPTIONS = frozenset(("ssl", "ssl_ca_file", "ssl_cert_file", "ssl_key_file", "rabbit_login_method"))
#: The TLS versions by the library's names.
_VERSIONS = {
    name.removeprefix("PROTOCOL_").lower(): getattr(ssl, name) for name in dir(ssl) if name.startswith("PROTOCOL_")
}


def arguments(group: cfg.ConfigOpts.GroupAttr, query: Mapping[str, str], host: str) -> dict[str, Any]:
    """Return the arguments for TLS and the login that the bus library would pass to py-amqp.

    With a file of certificate authorities, one of them must have issued the broker's certificate, and the certificate
    must name ``host``. Without such a file, an authority that the machine trusts must have issued it.

    :param query: the options at the end of the URL, which take precedence over those of the group.
    :raises OSError: a file cannot be read or has the wrong content.
    :raises ConfigurationError: an option has a wrong value.
    """

    def value(name: str) -> Any:
        return query[name] if name in query else group[name]

    login = value("rabbit_login_method")
    if login not in LOGINS:
        reason = f"[oslo_messaging_rabbit] rabbit_login_method: {login} is not one of {', '.join(LOGINS)}"
        raise errors.ConfigurationError(reason=reason)
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
    """Return whether a broker permanently refuses a user, a password, a virtual host or a queue.

    At a limit of connections or queues it sends the same code, but may accept the next try. Only the text of the error
    distinguishes the two.
    """
    if not isinstance(fault, amqp.exceptions.IrrecoverableChannelError | amqp.exceptions.NotAllowed):
        return False
    return "limit" not in re.sub("'[^']*'", "", str(fault))  # ignoring quoted names


def drop(connection: Any) -> None:
    """Close a connection of kombu without AMQP's closing hand-shake, which could wait long for a silent broker.

    TLS has a closing hand-shake as well: this side's part is sent, and the broker's part is not awaited.
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
    """Read the files, because the errors of a hand-shake do not name them.

    :raises OSError: a file cannot be read or has the wrong content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        files = tls.get("ca_certs", "")
        if files:
            context.load_verify_locations(files)
        if "certfile" in tls:
            files = ", ".join(tls[name] for name in ("certfile", "keyfile") if name in tls)
            # Pass a password, even a wrong one: without it, OpenSSL would ask on the terminal for the password of an
            # encrypted key.
            context.load_cert_chain(tls["certfile"], tls.get("keyfile"), password="")
    except OSError as fault:
        raise OSError(f"its TLS cannot be set up ({files}): {fault}") from fault
