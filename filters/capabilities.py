"""A flavor may ask for what drivers say of their hosts, by extra specs under ``capabilities:``."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from filters.extra_specs import Requirement, path_of, requirement
from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_SCOPE = "capabilities"
#: How many bits of physical addresses a guest wants, and what the driver says that the processor has.
_ADDRESS_BITS, _HOST_ADDRESS_BITS = "hw:maxphysaddr_bits", "cpu_info.maxphysaddr.bits"


class CapabilitiesFilter(ConditionsFilter):
    """Passes hosts whose attributes are such as the flavor's extra specs require.

    Further colons lead into what an attribute holds: ``capabilities:cpu_info:features``. An extra spec without any
    colon binds those hosts alone whose driver says something under its name, as it may be meant for somebody else.
    """

    reason = "has not the capabilities that the flavor asks for"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the flavor has such extra specs."""
        return any(map(_is_read, request.flavor.extra_specs))

    def check(self, request: RequestSpec) -> None:
        """Refuse an extra spec with an unknown operator, or with an operator that has not got what it needs."""
        list(_required(request))

    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether each extra spec is met."""
        for _, path, required in _required(request):
            yield asked.where_attribute(path, required)

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return which extra specs ``host`` does not meet, and what its driver says in place of that."""
        specs = request.flavor.extra_specs
        unmet = [
            f"{key}={specs[key]}, but says {_said(host.attribute(path))}"
            for key, path, required in _required(request)
            if not host.where_attribute(path, required)
        ]
        return f"does not meet the flavor's {'; '.join(unmet)}"


def _said(value: Any) -> str:
    return "nothing" if value is None else f"{value!r:.60}"


def _is_read(key: str) -> bool:
    return ":" not in key or key.startswith(f"{_SCOPE}:") or key == _ADDRESS_BITS


def _required(request: RequestSpec) -> Iterator[tuple[str, str, Requirement]]:
    """Yield the extra specs that are read, each with the path of an attribute and what is required there."""
    for key, text in request.flavor.extra_specs.items():
        if not _is_read(key):
            continue
        scope, colon, name = key.partition(":")
        if key == _ADDRESS_BITS:
            yield key, _HOST_ADDRESS_BITS, requirement(f">= {text}", path_of(key))
        elif colon and not name:
            raise errors.InvalidRequest(path=path_of(key), reason=f"no capability is named after {scope}:")
        elif colon:
            yield key, name.replace(":", "."), requirement(text, path_of(key))
        else:
            yield key, key, partial(_if_any, requirement(text, path_of(key)))


def _if_any(required: Requirement, value: Any) -> bool:
    return value is None or required(value)
