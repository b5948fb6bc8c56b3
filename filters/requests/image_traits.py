"""The request filter for traits in an image's properties."""

import re
from collections.abc import Iterator
from functools import cache

import os_traits
from oslo_config import cfg

from filters.image_properties import ARCHITECTURES
from filters.requests.merging import changed, unsuffixed, with_more, with_unsuffixed, wrong_property
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_SCOPE = "trait:"
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")
#: For each image property, the prefix of the trait that the root must have (Nova: ``transform_image_metadata``).
_TRAITS_BY_PROPERTY = {
    "hw_cdrom_bus": "COMPUTE_STORAGE_BUS_",
    "hw_disk_bus": "COMPUTE_STORAGE_BUS_",
    "hw_rescue_bus": "COMPUTE_STORAGE_BUS_",
    "hw_video_model": "COMPUTE_GRAPHICS_MODEL_",
    "hw_vif_model": "COMPUTE_NET_VIF_MODEL_",
    "hw_architecture": "HW_ARCH_",
    "hw_emulation_architecture": "COMPUTE_ARCH_",
    "hw_viommu_model": "COMPUTE_VIOMMU_MODEL_",
}
_OF_ARCHITECTURES = ("hw_architecture", "hw_emulation_architecture")


class ImageTraitsRequestFilter(RequestFilter):
    """Translates ``trait:...`` among the image's properties into required and forbidden traits.

    With the option, it also translates the image's buses, its video, network and IOMMU models, and its architecture.
    """

    options = (
        cfg.BoolOpt(
            "image_metadata_prefilter",
            default=False,
            help="Whether the buses of an image (hw_disk_bus and others), its device models (hw_video_model, "
            "hw_vif_model, hw_viommu_model) and its architecture (hw_architecture, hw_emulation_architecture) become "
            "required traits of the host. Enable it only if the compute drivers report these traits.",
        ),
    )

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with the image's traits.

        :raises InvalidRequest: a ``trait:`` property is malformed, or another property has a value without a trait.
        """
        if not request.image.properties:
            return request
        wanted = dict(_wanted(request))
        group = unsuffixed(request)
        request = with_unsuffixed(
            request,
            required=with_more(group.required, [trait for trait, word in wanted.items() if word == "required"]),
            forbidden=with_more(group.forbidden, [trait for trait, word in wanted.items() if word == "forbidden"]),
        )
        if self.settings["image_metadata_prefilter"]:
            request = changed(request, root_required=with_more(request.root_required, _of_devices(request)))
        return request


def _wanted(request: RequestSpec) -> Iterator[tuple[str, str]]:
    for name, value in sorted(request.image.properties.items()):
        if name.startswith(_SCOPE):
            word, trait = value.strip(), name.removeprefix(_SCOPE)
            if word not in ("required", "forbidden"):
                raise wrong_property(name, f"{word!r:.60} is neither required nor forbidden")
            if not _TRAIT.fullmatch(trait):
                raise wrong_property(name, f"{trait!r:.60} is no name of a trait")
            yield trait, word


def _of_devices(request: RequestSpec) -> Iterator[str]:
    properties = request.image.properties
    for name, prefix in _TRAITS_BY_PROPERTY.items():
        if name in properties:
            value = properties[name].strip()
            # An image may use another name for its architecture: amd64 for x86_64.
            value = ARCHITECTURES.get(value.lower(), value) if name in _OF_ARCHITECTURES else value
            trait = prefix + value.replace("-", "_").upper()
            if trait not in standard_traits():
                raise wrong_property(name, f"there is no trait for {properties[name]!r:.60}")
            yield trait


@cache
def standard_traits() -> frozenset[str]:
    """Return all standard traits; the library is read once."""
    return frozenset(os_traits.get_traits())
