"""A flavor's extra spec ``rack:tier`` is a trait that a host's root must have."""

from msgspec import structs

from moorage.errors import InvalidRequest
from moorage.model import RequestSpec
from moorage.plugin import Cloud, RequestFilter

_TIERS = ("gold", "silver")


class RackTierRequestFilter(RequestFilter):
    """Requires ``CUSTOM_RACK_GOLD`` or ``CUSTOM_RACK_SILVER`` of the root, as the flavor says."""

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:  # noqa: ARG002
        """Return the request with that trait.

        :raises InvalidRequest: there is no such tier.
        """
        tier = request.flavor.extra_specs.get("rack:tier")
        if tier is None:
            return request
        if tier not in _TIERS:
            raise InvalidRequest(
                path="$.flavor.extra_specs['rack:tier']", reason=f"{tier!r} is none of {', '.join(_TIERS)}"
            )
        trait = f"CUSTOM_RACK_{tier.upper()}"
        if trait in request.root_required:
            return request
        return structs.replace(request, root_required=(*request.root_required, trait))
