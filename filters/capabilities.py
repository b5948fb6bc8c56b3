"""The filter for a flavor's extra specs on hosts' attributes, ``capabilities:``."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from filters.extra_specs import Requirement, requirement, wrong
from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_SCOPE = "capabilities"
#: The extra spec with the number of physical address bits that a guest needs, and the attribute with the number that
#: the host's processor has.
_ADDRESS_BITS, _HOST_ADDRESS_BITS = "hw:maxphysaddr_bits", "cpu_info.maxphysaddr.bits"


class CapabilitiesFilter(ConditionsFilter):
    """Passes hosts whose attributes meet the flavor's extra specs.

    Further colons select nested attributes: ``capabilities:cpu_info:features``. An extra spec without a colon
    applies only to hosts with an attribute of its name, as it may be meant for another plug-in. For the same reason it
    is never refused: if it cannot be parsed, such hosts do not meet it.
    """

    reason = "has not the capabilities that the flavor asks for"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the flavor has such extra specs."""
        return any(map(_is_read, request.flavor.extra_specs))

    def check(self, request: RequestSpec) -> None:
        """Refuse a scoped extra spec with an unknown operator, or with missing operands."""
        list(_required(request))

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield for each extra spec whether it is met."""
        for _, path, required in _required(request):
            yield hosts.where_attribute(path, required)

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the extra specs that ``host`` does not meet, with its attributes."""
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
    """Yield the applicable extra specs, each with the path of an attribute and its requirement."""
    for key, text in request.flavor.extra_specs.items():
        if not _is_read(key):
            continue
        scope, colon, name = key.partition(":")
        if key == _ADDRESS_BITS:
            yield key, _HOST_ADDRESS_BITS, requirement(f">= {text}", key)
        elif colon and not name:
            raise wrong(key, f"a name is missing after {scope}:")
        elif colon:
            yield key, name.replace(":", "."), requirement(text, key)
        else:
            yield key, key, partial(_if_any, _unscoped(key, text))


def _unscoped(key: str, text: str) -> Requirement:
    """Parse the requirement of an extra spec without a colon; no value meets one that cannot be parsed."""
    try:
        return requirement(text, key)
    except errors.InvalidRequest:
        # It may be meant for another plug-in: refusing the request would make the flavor useless.
        return lambda _value: False


def _if_any(required: Requirement, value: Any) -> bool:
    return value is None or required(value)
