"""The hosts in a database's URL: one, or several nodes of a cluster in the order in which they are used.

SQLAlchemy parses a list of hosts with ports only as repeated parameters (``…@/name?host=db1:3306&host=db2:3306``). This
module converts the form of RabbitMQ's URLs, ``…@db1:3306,db2:3306/name``, to that form.
"""

import re
from typing import NamedTuple

from sqlalchemy.engine import URL, make_url

from moorage.addresses import address, check_host

_SEVERAL = re.compile(r"(?P<head>[^:/]+://(?:[^@]*@)?)(?P<hosts>[^@/?,]*(?:,[^@/?,]*)+)(?P<tail>(?:[/?].*)?)")
_HOST = re.compile(r"\[?(?P<name>(?<=\[)[^\]]+(?=\])|[^:\[\]]+)\]?(?::(?P<port>\d+))?")
_PARAMETER = "host"
#: The look-up of an address takes a greater number for another port.
_LAST_PORT = 65535


class DatabaseHost(NamedTuple):
    """A host, and its port if that is not the default one."""

    name: str | None
    port: int | None

    def __str__(self) -> str:
        return address(self.name or "localhost", self.port or "default port")


def parse(text: str) -> URL:
    """Parse the URL of a database with one host or several.

    :raises ArgumentError: the URL cannot be parsed.
    :raises ValueError: a host or a port cannot be parsed, or cannot exist.
    """
    if several := _SEVERAL.fullmatch(text):
        url = make_url(several["head"] + several["tail"])
        url = url.update_query_dict({_PARAMETER: several["hosts"].split(",")})
    else:
        url = make_url(text)
    hosts_of(url)  # to check each of them
    return url


def hosts_of(url: URL) -> tuple[DatabaseHost, ...]:
    """Return the hosts of a URL, in order of preference.

    :raises ValueError: a host or a port cannot be parsed, or cannot exist.
    """
    named = url.query.get(_PARAMETER)
    if named is None:
        return (_checked(url.host, url.port),)
    return tuple(_host(one) for one in ((named,) if isinstance(named, str) else named))


def without_hosts(url: URL) -> URL:
    """Return a URL without its list of hosts, for the driver."""
    return url.difference_update_query([_PARAMETER])


def _host(text: str) -> DatabaseHost:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a host with or without a port")
    return _checked(match["name"], int(match["port"]) if match["port"] else None)


def _checked(name: str | None, port: int | None) -> DatabaseHost:
    check_host(name or "")
    if (port or 0) > _LAST_PORT:
        raise ValueError(f"there is no port {port}")
    return DatabaseHost(name, port)
