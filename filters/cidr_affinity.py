"""The filter for hosts near an address, by the hints ``build_near_host_ip`` and ``cidr``."""

import ipaddress
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView
from moorage.plugin.hints import path_of

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEAR, _CIDR = "build_near_host_ip", "cidr"
#: The attribute with a host's address.
_HOST_IP = "host_ip"
#: The default prefix lengths: Nova's for version 4, and the usual length of a network for version 6.
_USUALLY = {4: "/24", 6: "/64"}


class CidrAffinityFilter(ConditionsFilter):
    """Passes hosts whose address is in the network around the hint's address."""

    reason = "is not in the network that was asked for"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the request has one of the hints."""
        return not request.scheduler_hints.keys().isdisjoint((_NEAR, _CIDR))

    def check(self, request: RequestSpec) -> None:
        """Refuse an invalid address or prefix length."""
        _network(request)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host has an address in the network."""
        network = _network(request)
        if isinstance(network, ipaddress.IPv4Network):
            # Compare the addresses as numbers: this is done for all hosts at once, and the numbers are cached.
            address = hosts.number_from(_HOST_IP, _number_of_version_4)
            yield np.greater_equal(address, int(network.network_address))
            yield np.less_equal(address, int(network.broadcast_address))
        elif network is not None:
            yield hosts.where_attribute(_HOST_IP, partial(_is_within, network))


def _network(request: RequestSpec) -> Network | None:
    """Return the network of the hints; None without an address."""
    text = request.scheduler_hints.get(_NEAR, "").strip()
    cidr = request.scheduler_hints.get(_CIDR, "").strip()
    if not text:
        if cidr:
            raise errors.InvalidRequest(path=path_of(_CIDR), reason=f"it needs {_NEAR}, which is missing")
        return None
    try:
        near = ipaddress.ip_address(text)
    except ValueError as fault:
        raise errors.InvalidRequest(path=path_of(_NEAR), reason=f"{text[:60]!r} is no IP address") from fault
    prefix = (cidr or _USUALLY[near.version]).removeprefix("/")
    if not (prefix.isascii() and prefix.isdigit() and int(prefix) <= near.max_prefixlen):
        reason = f"{cidr[:60]!r} is no prefix length: / and a number up to {near.max_prefixlen}"
        raise errors.InvalidRequest(path=path_of(_CIDR), reason=reason)
    return ipaddress.ip_network((near, int(prefix)), strict=False)


def _is_within(network: Network, value: Any) -> bool:
    address = _address(value)
    return address is not None and address in network


def _number_of_version_4(value: Any) -> float:
    """Return a version 4 address as a number; NaN, which is in no range, for anything else."""
    address = _address(value)
    return float(int(address)) if isinstance(address, ipaddress.IPv4Address) else math.nan


def _address(value: Any) -> Address | None:
    try:
        return ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None
