"""Test a chain of request filters: their order, their errors, and a group that has no resources left."""

from collections.abc import Callable

import pytest
from support.scheduler.builders import host_cache, host_row, select
from support.scheduler.trees import node
from support.scheduler.worded_requests import AGGREGATES, asked, group

from moorage import errors
from moorage.config import options
from moorage.model import RequestSpec
from moorage.plugin import Aggregate, BadValue, Cloud, RequestFilter, RequestRefused
from scheduler.decide.request_filters import Refusal, RequestFilterChain
from scheduler.plugins.loading import Named, load_request_filters
from scheduler.view.snapshot import Snapshot


class ScriptedFilter(RequestFilter):
    """A request filter that calls a function of the test."""

    def __init__(self, action: Callable[[RequestSpec, Cloud], RequestSpec]) -> None:
        super().__init__({})
        self._action = action

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return self._action(request, cloud)


def raising(fault: Exception) -> Callable[[RequestSpec, Cloud], RequestSpec]:
    def action(request: RequestSpec, cloud: Cloud) -> RequestSpec:
        raise fault

    return action


def narrowing(*actions: Callable[[RequestSpec, Cloud], RequestSpec]) -> RequestFilterChain:
    return RequestFilterChain([Named(f"n{number}", ScriptedFilter(action)) for number, action in enumerate(actions)])


def view() -> Snapshot:
    providers = [node(0, VCPU=8, traits=["CUSTOM_HERE"]), node(1, VCPU=8)]
    return host_cache([host_row(0), host_row(1)], providers).snapshot()


def test_without_request_filters_a_request_stays_unchanged() -> None:
    request = asked({"resources:VCPU": "none"})
    assert RequestFilterChain().narrow(request, view(), 0.0) is request


def test_each_filter_gets_the_result_of_the_previous_one() -> None:
    seen = []

    def adding(trait: str) -> Callable[[RequestSpec, Cloud], RequestSpec]:
        def action(request: RequestSpec, cloud: Cloud) -> RequestSpec:
            seen.append(request.root_required)
            return asked(root_required=(*request.root_required, trait))

        return action

    found = narrowing(adding("CUSTOM_A"), adding("CUSTOM_B")).narrow(asked(), view(), 0.0)
    assert seen == [(), ("CUSTOM_A",)]
    assert isinstance(found, RequestSpec)
    assert found.root_required == ("CUSTOM_A", "CUSTOM_B")


class WithoutReason(RequestRefused):
    """A refusal whose reason is never set."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("refusal", [RequestRefused(None), RequestRefused(""), WithoutReason()])  # type: ignore[arg-type]
def test_a_refusal_without_a_reason_gets_one(refusal: RequestRefused) -> None:
    assert narrowing(raising(refusal)).narrow(asked(), view(), 0.0) == Refusal("n0", "was refused")


def test_an_invalid_request_is_refused_with_its_path_in_the_message() -> None:
    fault = errors.InvalidRequest(path="$.flavor.extra_specs['a']", reason="no such thing")
    with pytest.raises(errors.InvalidRequest) as caught:
        narrowing(raising(fault)).narrow(asked(), view(), 0.0)
    assert (caught.value.path, caught.value.reason) == ("$.request_spec.flavor.extra_specs['a']", "no such thing")


def test_a_refusal_names_the_filter_and_later_filters_are_not_asked() -> None:
    found = narrowing(raising(RequestRefused("is closed")), raising(KeyError("never asked"))).narrow(
        asked(), view(), 0.0
    )
    assert found == Refusal("n0", "is closed")


@pytest.mark.parametrize("fault", [KeyError("a"), RecursionError(), errors.NotFound(kind="a", name="b")])
def test_a_filter_that_raises_another_error_is_named(fault: Exception) -> None:
    with pytest.raises(errors.BrokenPlugin) as caught:
        narrowing(lambda request, _: request, raising(fault)).narrow(asked(), view(), 0.0)
    assert (caught.value.plugin, caught.value.name, caught.value.kind) == ("request filter", "n1", type(fault).__name__)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "no request",
        asked(availability_zone=7),
        asked(availability_zone=""),
        asked(is_volume_backed="yes"),
        asked(vcpus=-1),
        asked(groups=None),
        asked(groups={"": None}),
        asked(groups={"": group({"VCPU": -1})}),
        asked(groups={"": group({"VCPU": None})}),  # type: ignore[dict-item]
        asked(groups={"_a": group({"VCPU": 0})}),
        asked(groups={"_a": group({"VCPU": 1}, required="CUSTOM_A")}),
        asked(root_member_of=AGGREGATES),
        asked(requested_destination="host1"),
        asked(server_group=object()),
    ],
)
def test_an_answer_that_is_no_valid_request_is_a_fault_of_the_filter(answer: RequestSpec) -> None:
    with pytest.raises(errors.BrokenPlugin, match="request filter n1 is broken: TypeError"):
        narrowing(lambda request, _: request, lambda _request, _cloud: answer).narrow(asked(), view(), 0.0)


def test_an_answer_may_remove_an_amount_of_the_flavor() -> None:
    without_disk = asked(groups={"": group({"DISK_GB": 0})})
    assert narrowing(lambda _request, _cloud: without_disk).narrow(asked(), view(), 0.0) is without_disk


@pytest.mark.parametrize(
    "fault",
    [
        errors.InvalidRequest(),  # type: ignore[call-arg]
        errors.InvalidRequest(path=None, reason="no path"),  # type: ignore[arg-type]
        errors.InvalidRequest(path="$.image", reason=object()),  # type: ignore[arg-type]
    ],
)
def test_an_error_of_a_filter_without_a_path_or_a_reason_is_a_fault_of_the_filter(fault: Exception) -> None:
    with pytest.raises(errors.BrokenPlugin, match="request filter n0 is broken: TypeError"):
        narrowing(raising(fault)).narrow(asked(), view(), 0.0)


def test_a_value_of_an_operator_that_a_filter_cannot_use_is_named() -> None:
    with pytest.raises(errors.BrokenPlugin, match="metadata a is 'b'"):
        narrowing(raising(BadValue("metadata a is 'b'"))).narrow(asked(), view(), 0.0)


def test_an_unavailable_store_is_not_a_fault_of_the_filter() -> None:
    def away(begun_after: float) -> list[Aggregate]:
        raise errors.StoreUnavailable(schema="main", reason="gone")

    def asking(request: RequestSpec, cloud: Cloud) -> RequestSpec:
        cloud.aggregates()
        return request

    with pytest.raises(errors.StoreUnavailable):
        RequestFilterChain([Named("n", ScriptedFilter(asking))], away).narrow(asked(), view(), 0.0)


def test_aggregates_are_read_once_for_a_request_and_only_if_a_filter_asks() -> None:
    read: list[float] = []

    def reading(begun_after: float) -> list[Aggregate]:
        read.append(begun_after)
        return [Aggregate(uuid, uuid) for uuid in reversed(AGGREGATES)]

    def asking(request: RequestSpec, cloud: Cloud) -> RequestSpec:
        assert [known.uuid for known in cloud.aggregates()] == sorted(AGGREGATES)
        return request

    RequestFilterChain([Named("a", ScriptedFilter(lambda request, _: request))], reading).narrow(asked(), view(), 1.0)
    assert read == []
    RequestFilterChain([Named("a", ScriptedFilter(asking)), Named("b", ScriptedFilter(asking))], reading).narrow(
        asked(), view(), 2.0
    )
    assert read == [2.0]


def test_a_cloud_has_the_traits_of_its_hosts_roots() -> None:
    seen = {}

    def looking(request: RequestSpec, cloud: Cloud) -> RequestSpec:
        seen.update({trait: cloud.has_trait(trait) for trait in ("CUSTOM_HERE", "CUSTOM_NOWHERE")})
        return request

    narrowing(looking).narrow(asked(), view(), 0.0)
    assert seen == {"CUSTOM_HERE": True, "CUSTOM_NOWHERE": False}


def test_the_rules_of_a_group_without_resources_apply_to_the_root() -> None:
    emptied = asked(
        root_required=("CUSTOM_A",),
        groups={
            "": group(
                dict.fromkeys(("VCPU", "MEMORY_MB", "DISK_GB"), 0),
                required=("CUSTOM_B",),
                forbidden=("CUSTOM_C",),
                member_of=((AGGREGATES[0],),),
                not_member_of=(AGGREGATES[1],),
            ),
            "_a": group({"VCPU": 4}),
        },
    )
    found = RequestFilterChain().narrow(emptied, view(), 0.0)
    assert isinstance(found, RequestSpec)
    assert found.resource_request.groups == {"_a": group({"VCPU": 4})}
    assert found.root_required == ("CUSTOM_A", "CUSTOM_B")
    assert found.root_forbidden == ("CUSTOM_C",)
    assert found.root_member_of == ((AGGREGATES[0],),)
    assert found.root_not_member_of == (AGGREGATES[1],)
    assert RequestFilterChain().narrow(found, view(), 0.0) == found


def test_a_narrowed_request_is_checked_again_only_if_it_has_changed() -> None:
    checked: list[RequestSpec] = []
    traits = iter([(), (), ("CUSTOM_A",), ("CUSTOM_A",)])
    message = select("r1")
    action: Named[RequestFilter] = Named(
        "n", ScriptedFilter(lambda _request, _cloud: asked(root_required=next(traits)))
    )
    chain = RequestFilterChain([action], check=checked.append)
    plans = [chain.resolve(message, view(), 0.0) for _ in range(4)]
    assert [one.request_spec.root_required for one in plans if not isinstance(one, Refusal)] == [
        *[()] * 2,
        *[("CUSTOM_A",)] * 2,
    ]
    assert [one.root_required for one in checked] == [(), ("CUSTOM_A",)]


def test_an_unknown_request_filter_is_refused() -> None:
    with pytest.raises(errors.UnknownPlugin) as caught:
        load_request_filters(options.new(), ["extra_specs", "no_such"])
    assert (caught.value.kind, caught.value.name) == ("request filter", "no_such")
    assert "extra_specs" in caught.value.known
