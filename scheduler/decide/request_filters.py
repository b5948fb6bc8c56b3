"""Resolve requests with the configured request filters: translate each into what it means on this cloud.

The result is not stored: a request is kept as it was sent, and resolved again for each plan, with the host aggregates
and traits of that moment.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import structs

from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import UNSUFFIXED, RequestSpec, ResourceGroup
from moorage.plugin import Aggregate, Cloud, HostView, RequestFilter, RequestRefused
from moorage.plugin.request_filter import valid_request
from scheduler.decide.funnel import reason_of
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS, PluginFailures, require_texts
from scheduler.plugins.loading import OURS, Named

#: Returns all host aggregates as they were at a time, by the follower's clock, or later.
ReadAggregates = Callable[[float], Sequence[Aggregate]]

#: The path of the request in the message: errors of request filters name paths below it.
_REQUEST = "$.request_spec"
_KIND = "request filter"
#: The conditions of a group that a request can also set for the root.
_OF_ROOTS = ("required", "forbidden", "member_of", "not_member_of")


class Refusal(NamedTuple):
    """Report that a request filter has refused a request; the reason holds for every host."""

    name: str
    reason: str


class RequestFilterChain:
    """Apply the configured request filters, in their order.

    :param aggregates: reads the host aggregates; it is called only when a request filter needs them.
    :param plugin_failures: handles request filters that break; without it, the request fails.
    :param check: refuses a malformed request, regardless of the hosts.
    """

    def __init__(
        self,
        filters: Sequence[Named[RequestFilter]] = (),
        aggregates: ReadAggregates = lambda _begun_after: (),
        plugin_failures: PluginFailures | None = None,
        check: Callable[[RequestSpec], None] = lambda _request: None,
    ) -> None:
        self._filters = filters
        self._aggregates = aggregates
        self._plugin_failures = plugin_failures or PluginFailures()
        self._check = check
        self._checked: RequestSpec | None = None

    def resolve(self, message: SelectDestinations, view: HostView, begun_after: float) -> SelectDestinations | Refusal:
        """Return a message with its request resolved for a view; see :meth:`narrow`. Each chain serves one request.

        :raises InvalidRequest: the request is malformed, or its groups contradict each other.
        :raises NotFound: a resource class or a trait does not exist.
        """
        narrowed = self.narrow(message.request_spec, view, begun_after)
        if isinstance(narrowed, Refusal):
            return narrowed
        # A request filter may name resource classes and traits that do not exist, so each new result is checked.
        if narrowed != self._checked:
            self._check(narrowed)
            self._checked = narrowed
        if narrowed is message.request_spec:
            return message
        return structs.replace(message, request_spec=narrowed)

    def narrow(self, request: RequestSpec, view: HostView, begun_after: float) -> RequestSpec | Refusal:
        """Return a request as the filters resolve it; the same object if none of them changes it.

        :param begun_after: host aggregates are read at that time or later, by the follower's clock.
        :raises InvalidRequest: a request filter finds the request malformed.
        :raises BrokenPlugin: a request filter has raised anything else, or has returned something that is no valid
            request.
        :raises StoreUnavailable: the host aggregates are needed and cannot be read.
        """
        cloud = _CloudOfAView(view, lambda: self._read_aggregates(begun_after))
        for name, plugin in self._filters:
            if self._plugin_failures.is_skipped(_KIND, name):
                continue
            try:
                with self._plugin_failures.timed(_KIND, name):
                    narrower = _narrowed(plugin, request, cloud)
            except RequestRefused as refused:
                return Refusal(name, reason_of(refused))
            except (errors.InvalidRequest, errors.StoreUnavailable):
                raise
            except PLUGIN_EXCEPTIONS as fault:
                self._plugin_failures.handle(_KIND, name, fault)
            else:
                request = narrower
        return _moved_to_root(request)

    def _read_aggregates(self, begun_after: float) -> Sequence[Aggregate]:
        # The time limit applies to the request filter, and not to a slow database.
        with self._plugin_failures.pausing():
            return self._aggregates(begun_after)


class _CloudOfAView(Cloud):
    """Show the cloud to request filters; host aggregates are read once, when the first filter needs them."""

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


def _narrowed(plugin: RequestFilter, request: RequestSpec, cloud: Cloud) -> RequestSpec:
    """Return a request as one filter narrows it; the same object if it changes nothing.

    :raises InvalidRequest: the filter finds the request malformed; with the path in the message.
    :raises TypeError: its answer is no valid request, or its error has no path or no reason.
    """
    try:
        narrower = plugin.narrow(request, cloud)
    except errors.InvalidRequest as fault:
        require_texts(fault)
        raise errors.InvalidRequest(path=f"{_REQUEST}{fault.path.removeprefix('$')}", reason=fault.reason) from fault
    if narrower is request or type(plugin).__module__.partition(".")[0] in OURS:
        # Tests check the answers of the built-in ones, as each check takes about ten microseconds.
        return narrower
    return valid_request(narrower)


def _moved_to_root(request: RequestSpec) -> RequestSpec:
    """Return the request with the traits and aggregates of an unsuffixed group without amounts moved to the root.

    If request filters have moved all amounts to other groups, no provider serves the unsuffixed group. So there is no
    provider that could be required to have its traits and aggregates.
    """
    group = request.groups.get(UNSUFFIXED)
    if group is None or request.resources:
        return request
    left = ResourceGroup(any_of=group.any_of, in_tree=group.in_tree, resources=group.resources)
    moved = {f"root_{name}": (*getattr(request, f"root_{name}"), *getattr(group, name)) for name in _OF_ROOTS}
    once = {name: tuple(dict.fromkeys(values)) for name, values in moved.items()}
    return structs.replace(request, groups={UNSUFFIXED: left, **request.suffixed}, **once)
