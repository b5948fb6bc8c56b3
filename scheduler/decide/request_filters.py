"""Narrowing: what a request means on this cloud, by the configured request filters, worked out anew for each plan.

Whoever keeps the request keeps its own words: they are narrowed where they are decided on, by what flavors, images and
host aggregates are at that moment.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from msgspec import structs

from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import UNSUFFIXED, RequestSpec, ResourceGroup
from moorage.plugin import Aggregate, Cloud, HostView, RequestFilter, RequestRefused
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS, PluginFailures
from scheduler.plugins.loading import Named

T = TypeVar("T")

#: Returns all host aggregates as they were at a time, by the follower's clock, or later.
Aggregates = Callable[[float], Sequence[Aggregate]]

#: What a request filter says is wrong stands in the message under this.
_REQUEST = "$.request_spec"
_KIND = "request filter"


class Refusal(NamedTuple):
    """A request filter's word that there is no host for a request; the reason is true of every host."""

    name: str
    reason: str


class RequestFilterChain:
    """The configured request filters, in their order.

    :param aggregates: where the host aggregates are to be had from; nobody asks before a filter does.
    :param faults: what is done about those that break; without it, the request fails.
    """

    def __init__(
        self,
        filters: Sequence[Named[RequestFilter]] = (),
        aggregates: Aggregates = lambda _begun_after: (),
        plugin_failures: PluginFailures | None = None,
    ) -> None:
        self._filters = filters
        self._aggregates = aggregates
        self._plugin_failures = plugin_failures or PluginFailures()

    def narrow(self, request: RequestSpec, view: HostView, begun_after: float) -> RequestSpec | Refusal:
        """Return what a request asks for on the hosts of a view; the same one where that is what it says itself.

        :param begun_after: what is read of the cloud for this is read at that time or later.
        :raises InvalidRequest: the request says what it cannot mean.
        :raises BrokenPlugin: a request filter has raised anything else, or has returned something that is no request.
        :raises StoreUnavailable: the host aggregates are needed and cannot be read.
        """
        cloud = _CloudOfAView(view, lambda: self._read_aggregates(begun_after))
        for name, plugin in self._filters:
            if self._plugin_failures.is_skipped(_KIND, name):
                continue
            try:
                with self._plugin_failures.asking(_KIND, name):
                    narrower = plugin.narrow(request, cloud)
                if not isinstance(narrower, RequestSpec):
                    raise TypeError(f"it has returned {type(narrower).__name__}, which is no request")
            except RequestRefused as refused:
                return Refusal(name, refused.reason)
            except errors.InvalidRequest as fault:
                path = f"{_REQUEST}{fault.path.removeprefix('$')}"
                raise errors.InvalidRequest(path=path, reason=fault.reason) from fault
            except errors.StoreUnavailable:
                raise
            except PLUGIN_EXCEPTIONS as fault:
                self._plugin_failures.met(_KIND, name, fault)
            else:
                request = narrower
        return _settled(request)

    def _read_aggregates(self, begun_after: float) -> Sequence[Aggregate]:
        # A database that is slow is not the request filter's fault.
        with self._plugin_failures.pausing():
            return self._aggregates(begun_after)


class RequestResolver:
    """One request while it is decided on: what it asks for, as the cloud is at each plan.

    :param check: refuses what is wrong with a request, whatever hosts there are.
    """

    def __init__(
        self, narrowing: RequestFilterChain, message: SelectDestinations, check: Callable[[RequestSpec], None]
    ) -> None:
        self._request_filters = narrowing
        self._message = message
        self._check = check
        self._checked: RequestSpec | None = None

    def resolve(self, view: HostView, begun_after: float) -> SelectDestinations | Refusal:
        """Return what is to be planned on the hosts of a view; see :meth:`RequestFilterChain.narrow`.

        :raises InvalidRequest: the request says what it cannot mean, or its groups contradict each other.
        :raises NotFound: a resource class or a trait does not exist.
        """
        narrowed = self._request_filters.narrow(self._message.request_spec, view, begun_after)
        if isinstance(narrowed, Refusal):
            return narrowed
        if narrowed != self._checked:
            self._check(narrowed)
            self._checked = narrowed
        if narrowed is self._message.request_spec:
            return self._message
        return structs.replace(self._message, request_spec=narrowed)


class _CloudOfAView(Cloud):
    """What request filters may know, each thing read when the first of them asks for it."""

    def __init__(self, view: HostView, aggregates: Callable[[], Sequence[Aggregate]]) -> None:
        self._view = view
        self._read = aggregates
        self._aggregates: Sequence[Aggregate] | None = None

    def aggregates(self) -> Sequence[Aggregate]:
        if self._aggregates is None:
            self._aggregates = sorted(self._read(), key=lambda aggregate: aggregate.uuid)
        return self._aggregates

    def has_trait(self, trait: str) -> bool:
        return bool(self._view.root_has_trait(trait).any())


def _settled(request: RequestSpec) -> RequestSpec:
    """Return a request whose unsuffixed group serves something: else what it says of its providers is the root's.

    With all amounts in other groups, nobody would be left of whom its traits and aggregates could be asked.
    """
    group = request.groups.get(UNSUFFIXED)
    if group is None or request.resources:
        return request
    left = ResourceGroup(any_of=group.any_of, in_tree=group.in_tree, resources=group.resources)
    return structs.replace(
        request,
        groups={UNSUFFIXED: left, **request.suffixed},
        root_required=_joined(request.root_required, group.required),
        root_forbidden=_joined(request.root_forbidden, group.forbidden),
        root_member_of=_joined(request.root_member_of, group.member_of),
        root_not_member_of=_joined(request.root_not_member_of, group.not_member_of),
    )


def _joined(values: tuple[T, ...], more: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*values, *more)))
