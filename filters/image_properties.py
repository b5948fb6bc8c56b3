"""The filter for images that require an architecture, a hypervisor or a virtual machine mode."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from oslo_config import cfg
from oslo_utils import versionutils

from moorage import errors
from moorage.model import Image, RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView, measured

#: The properties with an image's requirements, each with its former name.
_ARCHITECTURE = ("hw_architecture", "architecture")
_HYPERVISOR = ("img_hv_type", "hypervisor_type")
_VM_MODE = ("hw_vm_mode", "vm_mode")
_VERSION = ("img_hv_requested_version", "hypervisor_version_requires")
_ADDRESS_BITS = ("hw_maxphysaddr_bits",)
#: The hosts' attributes: combinations of architecture, hypervisor type and virtual machine mode; version; address bits.
_SUPPORTED, _HOST_VERSION, _HOST_ADDRESS_BITS = "supported_instances", "hypervisor_version", "cpu_info.maxphysaddr.bits"
_DEFAULT_ARCHITECTURE = "image_properties_default_architecture"

#: Synonyms (Nova's ``fields.Architecture``, ``HVType`` and ``VMMode``).
ARCHITECTURES = {"i386": "i686", "i486": "i686", "i586": "i686", "amd64": "x86_64", "x64": "x86_64"}
_HYPERVISORS = {"xapi": "xen"}
_VM_MODES = {"pv": "xen", "hv": "hvm", "baremetal": "hvm"}


class ImagePropertiesFilter(ConditionsFilter):
    """Passes hosts that support the requirements of the image.

    A host without the attribute supports no requirement.
    """

    reason = "does not support what the image needs"
    options = (
        cfg.StrOpt(
            _DEFAULT_ARCHITECTURE,
            help="The architecture, such as x86_64, of images that do not name one. If it is not set, such images may "
            "go to any host.",
        ),
    )

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the image has any requirement, or a default applies."""
        asked_by = {*_ARCHITECTURE, *_HYPERVISOR, *_VM_MODE, *_VERSION, *_ADDRESS_BITS}
        return bool(self.settings.get(_DEFAULT_ARCHITECTURE)) or not asked_by.isdisjoint(request.image.properties)

    def check(self, request: RequestSpec) -> None:
        """Refuse an invalid requirement on versions or on the number of address bits."""
        _versions(request.image)
        _address_bits(request.image)

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield whether the host has the combination, the version and the address bits that the image requires."""
        for path, will_do in self._needs(request):
            yield hosts.where_attribute(path, will_do)

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the attributes of ``host`` that do not meet the image's requirements."""
        unmet = [path for path, will_do in self._needs(request) if not host.where_attribute(path, will_do)]
        unmet_values = [f"{path} is {host.attribute(path)!r:.60}" for path in unmet]
        return f"{self.reason}: its {', its '.join(unmet_values)}" if unmet_values else self.reason

    def _needs(self, request: RequestSpec) -> Iterator[tuple[str, Callable[[Any], bool]]]:
        """Yield the attributes with requirements of the image, each with a predicate on its value."""
        image = request.image
        wanted = (
            _canonical(_property(image, _ARCHITECTURE) or self.settings.get(_DEFAULT_ARCHITECTURE), ARCHITECTURES),
            _canonical(_property(image, _HYPERVISOR), _HYPERVISORS),
            _canonical(_property(image, _VM_MODE), _VM_MODES),
        )
        if any(wanted):
            yield _SUPPORTED, partial(_supports, wanted)
        if (versions := _versions(image)) is not None:
            yield _HOST_VERSION, partial(_is_among, versions)
        if (bits := _address_bits(image)) is not None:
            yield _HOST_ADDRESS_BITS, partial(_has_bits, bits)


def _property(image: Image, names: Sequence[str]) -> str | None:
    return next((image.properties[name] for name in names if name in image.properties), None)


def _canonical(name: Any, others: Mapping[str, str]) -> str | None:
    if not isinstance(name, str) or not name:
        return None
    return others.get(name.lower(), name.lower())


def _supports(wanted: Sequence[str | None], supported: Any) -> bool:
    """Return whether one of a host's combinations has the required architecture, hypervisor type and mode."""
    others = (ARCHITECTURES, _HYPERVISORS, _VM_MODES)
    return isinstance(supported, list) and any(
        isinstance(combination, list)
        and len(combination) == len(others)
        and all(
            want is None or want == _canonical(has, names)
            for want, has, names in zip(wanted, combination, others, strict=True)
        )
        for combination in supported
    )


def _versions(image: Image) -> versionutils.VersionPredicate | None:
    """Return the versions on which the image runs, written as ``>=6.0, <6.2``."""
    text = _property(image, _VERSION)
    if text is None:
        return None
    try:
        return versionutils.VersionPredicate(text)
    except ValueError as fault:
        name = next(name for name in _VERSION if name in image.properties)
        reason = f"{text[:60]!r} is no requirement of versions, such as: >=6.0, <6.2"
        raise errors.InvalidRequest(path=f"$.image.properties.{name}", reason=reason) from fault


def _is_among(versions: versionutils.VersionPredicate, value: Any) -> bool:
    """Return whether a version is among those; a number has three digits for each part, as 6001002 for 6.1.2."""
    if not isinstance(value, str) and not (isinstance(value, int) and value > 0):
        return False
    try:
        text = versionutils.convert_version_to_str(value) if isinstance(value, int) else value
        return bool(versions.satisfied_by(text))
    except ValueError:
        return False


def _address_bits(image: Image) -> float | None:
    text = _property(image, _ADDRESS_BITS)
    if text is None:
        return None
    if math.isnan(bits := measured(text)):
        raise errors.InvalidRequest(path=f"$.image.properties.{_ADDRESS_BITS[0]}", reason=f"{text[:60]!r} is no number")
    return bits


def _has_bits(bits: float, value: Any) -> bool:
    # An absent or invalid number is NaN, which is never greater than or equal to a number.
    return measured(value) >= bits
