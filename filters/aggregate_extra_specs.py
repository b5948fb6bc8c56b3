"""The filter for a flavor's extra specs on aggregate metadata, ``aggregate_instance_extra_specs:``."""

from collections.abc import Iterator
from functools import partial

from filters.extra_specs import Requirement, requirement, wrong
from filters.metadata_values import listed
from moorage.model import RequestSpec
from moorage.plugin import Answer, ConditionsFilter, Host, HostView

_SCOPE = "aggregate_instance_extra_specs:"


class AggregateExtraSpecsFilter(ConditionsFilter):
    """Passes hosts whose aggregate metadata meet the flavor's requirement for each key.

    Unlike Nova's, it ignores extra specs without the scope: they may be meant for the host's attributes.
    """

    reason = "is in no aggregate of the kind that the flavor asks for"

    def concerns(self, request: RequestSpec) -> bool:
        """Return whether the flavor has such extra specs."""
        return any(key.startswith(_SCOPE) for key in request.flavor.extra_specs)

    def check(self, request: RequestSpec) -> None:
        """Refuse an extra spec with an unknown operator, or with missing operands."""
        list(_required(request))

    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterator[Answer]:
        """Yield for each key whether one of its values meets the requirement."""
        for key, required in _required(request):
            yield hosts.where_metadata(key, partial(_some_meets, required))

    def why(self, host: Host, request: RequestSpec) -> str:
        """Return the keys for which no aggregate of ``host`` has a value that meets the flavor."""
        unmet = [
            key
            for key, required in _required(request)
            if not _some_meets(required, host.metadata.get(key, frozenset()))
        ]
        return f"is in no aggregate that meets the flavor's {', '.join(unmet)}"


def _required(request: RequestSpec) -> Iterator[tuple[str, Requirement]]:
    for key, text in request.flavor.extra_specs.items():
        if key.startswith(_SCOPE):
            if not (name := key.removeprefix(_SCOPE)):
                raise wrong(key, f"a name is missing after {_SCOPE}")
            yield name, requirement(text, key)


def _some_meets(required: Requirement, values: frozenset[str]) -> bool:
    return any(map(required, listed(values)))
