"""Test that the checks of the kit for plug-ins find each defect of a weigher or request filter, and name it."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from msgspec import structs

from moorage.ids import derived
from moorage.model import RequestSpec
from moorage.plugin import Aggregate, Amount, Cloud, FloatArray, Host, HostView, RequestFilter, Weigher
from moorage.testing import Words, check_request_filter, check_weigher


class Weighing(Weigher):
    """Prefers hosts with servers."""

    def weigh(self, host: Host, request: RequestSpec) -> float:
        return float(host.instances)


class OtherScores(Weighing):
    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        return np.minimum(view.instances, 2).astype(np.float64)


class WholeNumbers(Weighing):
    def scores(self, view: HostView, request: RequestSpec) -> Any:
        found: Amount = view.instances
        return found


class NotANumber(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        return math.nan if host.instances > 1 else 0.0


class Dividing(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        return 1 / host.instances


class Biased(Weighing):
    def concerns(self, request: RequestSpec) -> bool:
        return request.server_group is not None


class Unmultiplied(Weighing):
    default_multiplier = math.inf


class WithoutMultiplier(Weighing):
    default_multiplier: ClassVar[Any] = None


class WrittenMultiplier(Weighing):
    default_multiplier: ClassVar[Any] = "1.0"


class WithoutKeys(Weighing):
    numeric_metadata: ClassVar[Any] = None


class Unconstructed(Weighing):
    def __init__(self, settings: Any) -> None:
        raise LookupError("no such rack")


class Leaving(Weighing):
    def __init__(self, settings: Any) -> None:
        raise SystemExit(3)


class Exiting(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        raise SystemExit(3)


class FailingAgain(Weighing):
    """Fails if its first request is that of the last sample."""

    first: Any = None

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        self.first = self.first or request
        if self.first.flavor.vcpus == 4:
            raise LookupError("no such rack")
        return super().scores(view, request)


class WithoutComma(Weighing):
    numeric_metadata = "rack_celsius"


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (WithoutComma, "has the text 'rack_celsius' instead of a list as numeric_metadata"),
        (WithoutKeys, "has None as numeric_metadata, which is no list"),
        (WithoutMultiplier, "default multiplier None, which is no finite number"),
        (WrittenMultiplier, "default multiplier '1.0', which is no finite number"),
        (Unconstructed, "Unconstructed cannot be constructed: LookupError: no such rack"),
        (Leaving, "Leaving cannot be constructed: SystemExit: 3"),
        (Exiting, "Exiting raises SystemExit: 3"),
        (FailingAgain, "FailingAgain raises LookupError: no such rack"),
        (OtherScores, "3.0 alone, and 2.0 among all"),
        (WholeNumbers, "scores are no array of . floats"),
        (NotANumber, "the weight nan, which cannot be compared"),
        (Dividing, "Dividing raises ZeroDivisionError"),
        (Biased, "is not concerned, and prefers hosts"),
        (Unmultiplied, "default multiplier inf"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_each_defect_of_a_weigher_is_named(kind: type[Weigher], sentence: str) -> None:
    check_weigher(Weighing)
    with pytest.raises(AssertionError, match=sentence):
        check_weigher(kind)


class Narrowing(RequestFilter):
    """Requires a trait of the root."""

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return structs.replace(request, root_required=tuple(dict.fromkeys((*request.root_required, "CUSTOM_A"))))


class Growing(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return structs.replace(request, root_required=(*request.root_required, "CUSTOM_A"))


class Forgetting(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> Any:
        return None


class Emptying(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        return structs.replace(request, availability_zone="")


class Failing(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        raise LookupError("no such rack")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Growing, "of what it has made already"),
        (Forgetting, "has made None of a request"),
        (Emptying, r"of a request: it .* invalid at \$.availability_zone: Expected `str` of length >= 1"),
        (Failing, "Failing raises LookupError: no such rack"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_each_defect_of_a_request_filter_is_named(kind: type[RequestFilter], sentence: str) -> None:
    check_request_filter(Narrowing)
    with pytest.raises(AssertionError, match=sentence):
        check_request_filter(kind)


DROPPED: dict[str, Any] = {
    "root_required": (),
    "root_forbidden": (),
    "ignore_hosts": (),
    "availability_zone": None,
    "server_group": None,
    "groups": {},
}


@pytest.mark.parametrize("field", DROPPED)
def test_a_request_filter_that_drops_a_condition_of_the_request_is_found(field: str) -> None:
    class Dropping(Narrowing):
        def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
            return structs.replace(super().narrow(request, cloud), **{field: DROPPED[field]})

    with pytest.raises(AssertionError, match=f"Dropping drops {field}, and so widens a request"):
        check_request_filter(Dropping, words=Words(traits=["CUSTOM_B", "CUSTOM_C"]))


class CountingByImage(Weighing):
    def weigh(self, host: Host, request: RequestSpec) -> float:
        return float(host.instances + host.servers_with("os", "linux"))

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        return view.instances.astype(np.float64)


def test_scores_without_the_servers_by_image_are_found() -> None:
    with pytest.raises(AssertionError, match=r"alone, and .* among all"):
        check_weigher(CountingByImage, words=Words(image_properties={"os": ["linux"]}))


class KeepingAggregates(Narrowing):
    known: Sequence[Aggregate] | None = None

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        if self.known is None:
            self.known = cloud.aggregates()
        return structs.replace(request, root_not_member_of=tuple(each.uuid for each in self.known))


class KeepingTraits(Narrowing):
    known: bool | None = None

    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        if self.known is None:
            self.known = cloud.has_trait("CUSTOM_A")
        return super().narrow(request, cloud) if self.known else request


@pytest.mark.parametrize("kind", [KeepingAggregates, KeepingTraits])
@pytest.mark.parametrize("count", [198, 199, 200])
def test_a_request_filter_that_keeps_what_it_has_read_of_the_cloud_is_found(
    kind: type[RequestFilter], count: int
) -> None:
    aggregates, words = [Aggregate(uuid=derived("kit", "aggregate"), name="x")], Words(traits=["CUSTOM_A"])
    with pytest.raises(AssertionError, match="does not repeat its answer"):
        check_request_filter(kind, words=words, aggregates=aggregates, count=count)


class ChangingMetadata(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        for each in cloud.aggregates():
            each.metadata.setdefault("trait", "CUSTOM_A")  # type: ignore[attr-defined]
        return super().narrow(request, cloud)


class ChangingAggregates(Narrowing):
    def narrow(self, request: RequestSpec, cloud: Cloud) -> RequestSpec:
        cloud.aggregates().reverse()  # type: ignore[attr-defined]
        return super().narrow(request, cloud)


@pytest.mark.parametrize("kind", [ChangingMetadata, ChangingAggregates])
def test_a_request_filter_that_changes_the_host_aggregates_of_the_cloud_is_found(kind: type[RequestFilter]) -> None:
    aggregates = [Aggregate(uuid=derived("kit", "aggregate", name), name=name, metadata={}) for name in ("x", "y")]
    with pytest.raises(AssertionError, match=f"{kind.__name__} has changed the host aggregates of the cloud: .*'x'"):
        check_request_filter(kind, aggregates=aggregates)
