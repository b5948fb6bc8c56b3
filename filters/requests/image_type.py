"""The request filter for the format of the image."""

from filters.requests.image_traits import standard_traits
from filters.requests.merging import changed, with_more, wrong_property
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_FORMAT = "disk_format"
_PREFIX = "COMPUTE_IMAGE_TYPE_"


class ImageTypeRequestFilter(RequestFilter):
    """Translates the image property ``disk_format`` into a required trait of the root.

    A server that starts from a volume needs no such host.
    """

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with COMPUTE_IMAGE_TYPE_... required.

        :raises InvalidRequest: the format is unknown.
        """
        disk_format = request.image.properties.get(_FORMAT)
        if disk_format is None or request.is_volume_backed:
            return request
        trait = f"{_PREFIX}{disk_format.strip().upper()}"
        if trait not in standard_traits():
            raise wrong_property(_FORMAT, f"{disk_format!r:.60} is no format of images that has a trait")
        return changed(request, root_required=with_more(request.root_required, [trait]))
