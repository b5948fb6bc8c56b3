"""Conformance checks for every filter, weigher and request filter, independent of its decisions.

The scheduler relies on them: a mask that differs from the one-host form makes explanations wrong, a plug-in that
changes a request or keeps state makes the next decision wrong, and a score that is not a number fails the request.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from moorage import errors
from moorage.model import RequestSpec
from moorage.plugin import Aggregate, BadValue, Cloud, Filter, Host, HostView, RequestFilter, RequestRefused, Weigher
from moorage.plugin.request_filter import valid_request
from moorage.testing.builders import candidate, cloud
from moorage.testing.classes import check_multiplier, check_reason, constructed
from moorage.testing.describe import faultless, of_host, of_request, require
from moorage.testing.samples import Sample, Words, samples

P = TypeVar("P", Filter, Weigher, RequestFilter)
T = TypeVar("T")

#: The number of random samples of a check; arbitrary: they take tenths of a second.
_SAMPLES = 200
#: The most seconds of one call for the few hosts of a sample. Arbitrary: a sound plug-in needs a thousandth.
_LONGEST_ANSWER = 0.5


def check_filter(
    kind: type[Filter],
    settings: Mapping[str, Any] | None = None,
    words: Words | None = None,
    *,
    count: int = _SAMPLES,
    decides: bool = True,
) -> None:
    """Check that a filter has the properties on which the scheduler relies.

    :param settings: values of its options, by default the options' defaults.
    :param words: the names and values that it reads beyond those of every host and request.
    :param count: the number of random samples.
    :param decides: whether it must pass one host and refuse another; otherwise the check may have tested nothing.
    :raises AssertionError: it lacks one, with a sentence about it.
    """
    check_reason(kind)
    results = _results(kind, settings, words, count, answers_of, "answered")
    if decides:
        found = {answer for _, answers in results if answers is not None for answer in answers}
        what = "let all hosts pass" if found == {True} else "refused all hosts"
        require(
            found == {True, False},
            f"{kind.__name__} has {what} in {count} samples: say by `words` and `settings` what it looks at, or "
            "`decides=False`",
        )


def check_weigher(
    kind: type[Weigher],
    settings: Mapping[str, Any] | None = None,
    words: Words | None = None,
    *,
    count: int = _SAMPLES,
    decides: bool = True,
) -> None:
    """Check that a weigher has the properties on which the scheduler relies; parameters as of :func:`check_filter`.

    :param decides: whether it must prefer one host to another.
    :raises AssertionError: it lacks one, with a sentence about it.
    """
    check_multiplier(kind)
    results = _results(kind, settings, words, count, scores_of, "said")
    if decides:
        require(
            any(scores is not None and len(set(scores)) > 1 for _, scores in results),
            f"to {kind.__name__} all hosts weigh the same in {count} samples: say by `words` and `settings` what it "
            "looks at, or `decides=False`",
        )


def check_request_filter(
    kind: type[RequestFilter],
    settings: Mapping[str, Any] | None = None,
    words: Words | None = None,
    *,
    aggregates: Sequence[Aggregate] = (),
    count: int = _SAMPLES,
    decides: bool = True,
) -> None:
    """Check that a request filter has the properties on which the scheduler relies; parameters as above.

    :param aggregates: the host aggregates of the cloud; its hosts' roots have each of the words' traits, or none.
    :param decides: whether it must narrow or refuse a request.
    :raises AssertionError: it lacks one, with a sentence about it.
    """
    words = words or Words()
    clouds = [cloud(aggregates, words.traits), cloud(aggregates), cloud()]
    results = []
    with constructed(kind, settings) as (plugin, fresh):
        for number, sample in enumerate(samples(words, count)):
            here = clouds[number % len(clouds)]
            present = _listed(here)
            with unchanged(sample.view, sample.request, kind.__name__), faultless(kind.__name__, sample.request):
                narrowed = _timed(partial(_narrowed, plugin, sample.request, here), kind.__name__, len(sample.view))
            require(
                _listed(here) == present,
                f"{kind.__name__} has changed the host aggregates of the cloud: {present} have become {_listed(here)}",
            )
            results.append((sample.request, here, narrowed))
            if isinstance(narrowed, RequestSpec):
                _require_narrower(kind.__name__, sample.request, narrowed)
                with faultless(kind.__name__, narrowed):
                    again = _narrowed(plugin, narrowed, here)
                require(again == narrowed, f"{kind.__name__} makes {again} of what it has made already: {narrowed}")
        # The last cloud comes first: what a plug-in keeps of the first cloud that it is asked about is wrong there.
        for turn in reversed(range(len(clouds))):
            for asked, here, narrowed in reversed(results[turn :: len(clouds)]):
                with faultless(kind.__name__, asked):
                    again = _narrowed(fresh, asked, here)
                require(again == narrowed, f"{kind.__name__} does not repeat its answer")
    require(
        any(narrowed != asked for asked, _, narrowed in results) or not decides,
        f"{kind.__name__} has changed no request in {count} samples: say by `words` what it looks at, or "
        "`decides=False`",
    )


# --- One plug-in on one cloud ---------------------------------------------------------------------------------------


def answers_of(plugin: Filter, view: HostView, request: RequestSpec) -> list[bool] | None:
    """Return a filter's decision on each host of a view, computed for all at once and for each by itself.

    None if it refuses the request itself, or a value of a host.

    :raises AssertionError: the two differ, are not booleans, or contradict :meth:`Filter.concerns`.
    """
    name = type(plugin).__name__
    try:
        plugin.check(request)
    except errors.InvalidRequest as refusal:
        require(
            refusal.path.startswith("$."), f"{name} refuses a request by the path {refusal.path!r}: begin with '$.'"
        )
        return None
    hosts = [view.host(row) for row in range(len(view))]
    try:
        mask = plugin.mask(view, request)
        alone = [plugin.passes(host, request) for host in hosts]
    except BadValue:
        return None
    require(
        isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (len(view),),
        f"{name}'s mask is no array of {len(view)} booleans, but {mask!r}",
    )
    for row, (host, answer) in enumerate(zip(hosts, alone, strict=True)):
        require(
            isinstance(answer, bool | np.bool_),
            f"{name} says {answer!r} of {host.service_host}, which is neither true nor false",
        )
        require(
            bool(answer) == bool(mask[row]),
            f"{name} says {answer} of {host.service_host} alone, and {mask[row]} in its mask: "
            f"{of_host(host)}; {of_request(request)}",
        )
        if not answer:
            why = plugin.why(host, request)
            require(
                isinstance(why, str) and bool(why.strip()),
                f"{name} does not say why it refuses {of_host(host)}, but {why!r}",
            )
    answers = [bool(answer) for answer in alone]
    concerned = _concerned(plugin, request)
    require(concerned or all(answers), f"{name} is not concerned, and refuses hosts: {of_request(request)}")
    # A scheduler never calls a filter that is not concerned with a candidate.
    if concerned and type(plugin).passes_candidate is not Filter.passes_candidate:
        for host in hosts:
            _check_candidates(plugin, host, request)
    return answers


def _check_candidates(plugin: Filter, host: Host, request: RequestSpec) -> None:
    """Check a filter's decision on an allocation candidate of each provider of a host.

    :raises AssertionError: the decision is not a boolean, or differs at a second call; or the filter has changed the
        candidate.
    """
    name = type(plugin).__name__
    for uuid in sorted(host.providers):
        amounts = {uuid: request.resource_request.totals()}
        shown = candidate(amounts)
        try:
            answer = plugin.passes_candidate(host, shown, request)
            again = plugin.passes_candidate(host, shown, request)
        except BadValue:
            continue
        require(
            isinstance(answer, bool | np.bool_),
            f"{name} says {answer!r} of a candidate of {host.service_host}, which is neither true nor false",
        )
        require(answer == again, f"{name} says {answer} of a candidate of {host.service_host}, and then {again}")
        require(shown == candidate(amounts), f"{name} has changed a candidate of {host.service_host}: {amounts}")


def scores_of(plugin: Weigher, view: HostView, request: RequestSpec, *, finite: bool = True) -> list[float] | None:
    """Return a weigher's score of each host of a view, computed for all at once and for each by itself.

    None if it refuses a value of a host.

    :param finite: whether each score must be finite; a weigher that needs a value of every host may have none.
    :raises AssertionError: the two differ, are not numbers, or contradict :meth:`Weigher.concerns`.
    """
    name = type(plugin).__name__
    hosts = [view.host(row) for row in range(len(view))]
    try:
        scores = plugin.scores(view, request)
        alone = [plugin.weigh(host, request) for host in hosts]
    except BadValue:
        return None
    require(
        isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (len(view),),
        f"{name}'s scores are no array of {len(view)} floats, but {scores!r}",
    )
    for host, weight, at_once in zip(hosts, alone, scores, strict=True):
        require(
            isinstance(weight, int | float | np.number) and not isinstance(weight, bool),
            f"{name} gives {host.service_host} the weight {weight!r}, which is no number",
        )
        require(
            not finite or bool(np.isfinite(weight)),
            f"{name} gives {host.service_host} the weight {weight}, which cannot be compared: "
            f"{of_host(host)}; {of_request(request)}",
        )
        require(
            bool(weight == at_once or (np.isnan(weight) and np.isnan(at_once))),
            f"{name} gives {host.service_host} {weight} alone, and {at_once} among all: "
            f"{of_host(host)}; {of_request(request)}",
        )
    require(
        _concerned(plugin, request) or len({repr(each) for each in scores.tolist()}) <= 1,
        f"{name} is not concerned, and prefers hosts: {of_request(request)}",
    )
    return [float(score) for score in scores]


@contextmanager
def unchanged(view: HostView, request: RequestSpec, name: str) -> Iterator[None]:
    """Check that the plug-in ``name`` changes neither the hosts of a view nor a request until exit.

    :raises AssertionError: the plug-in changes one of them.
    """
    before = copy.deepcopy(([view.host(row) for row in range(len(view))], request))
    yield
    hosts, asked = before
    require(request == asked, f"{name} has changed a request: it was {of_request(asked)}, and is {of_request(request)}")
    for row, host in enumerate(hosts):
        require(
            view.host(row) == host, f"{name} has changed a host: {of_host(host)} has become {of_host(view.host(row))}"
        )


# --- Small things ---------------------------------------------------------------------------------------------------


def _timed(ask: Callable[[], T], name: str, hosts: int) -> T:
    """Return the result of a call, and measure it; a slow call is repeated once, as the machine may have been busy.

    :raises AssertionError: the call was too slow twice.
    """
    begun = time.monotonic()
    answer = ask()
    seconds = time.monotonic() - begun
    if seconds > _LONGEST_ANSWER:
        begun = time.monotonic()
        ask()
        seconds = min(seconds, time.monotonic() - begun)
    require(
        seconds <= _LONGEST_ANSWER,
        f"{name} takes {seconds:.1f} s for a question about {hosts} hosts, and has [scheduler] plugin_timeout for all",
    )
    return answer


def _results(
    kind: type[P],
    settings: Mapping[str, Any] | None,
    words: Words | None,
    count: int,
    ask: Callable[[P, HostView, RequestSpec], T],
    said: str,
) -> list[tuple[Sample, T]]:
    """Return a plug-in's results of samples, which another one repeats in reverse order: a plug-in keeps no state."""
    results, name = [], kind.__name__
    with constructed(kind, settings) as (plugin, fresh):
        for sample in samples(words or Words(), count):
            view, request = sample.view, sample.request
            with unchanged(view, request, name), faultless(name, request):
                results.append((sample, _timed(partial(ask, plugin, view, request), name, len(view))))
        for sample, result in reversed(results):
            with faultless(name, sample.request):
                again = ask(fresh, sample.view, sample.request)
            require(again == result, f"{name} has {said} {result}, and asked again, {again}: it keeps state")
    return results


def _concerned(plugin: Filter | Weigher, request: RequestSpec) -> bool:
    concerned = plugin.concerns(request)
    require(isinstance(concerned, bool), f"{type(plugin).__name__}.concerns says {concerned!r}, no boolean")
    return concerned


def _narrowed(plugin: RequestFilter, request: RequestSpec, here: Any) -> RequestSpec | str:
    name = type(plugin).__name__
    try:
        narrowed = plugin.narrow(request, here)
    except RequestRefused as refused:
        require(bool(refused.reason), f"{name} refuses a request and does not say why: {of_request(request)}")
        return f"refused: {refused.reason}"
    except errors.InvalidRequest as fault:
        require(fault.path.startswith("$."), f"{name} refuses a request by the path {fault.path!r}: begin with '$.'")
        return f"invalid: {fault}"
    try:
        return valid_request(narrowed)
    except TypeError as fault:
        raise AssertionError(f"{name} has made {narrowed!r} of a request: {fault}") from fault


def _listed(here: Cloud) -> list[tuple[str, str, dict[str, str]]]:
    """Return a cloud's host aggregates as copies."""
    return [(each.uuid, each.name, dict(each.metadata)) for each in here.aggregates()]


def _require_narrower(name: str, asked: RequestSpec, narrowed: RequestSpec) -> None:
    listed, single = ("root_required", "root_forbidden", "ignore_hosts"), ("availability_zone", "server_group")
    lost = [field for field in listed if set(getattr(asked, field)) - set(getattr(narrowed, field))]
    lost += [field for field in single if getattr(asked, field) not in (None, getattr(narrowed, field))]
    lost += ["groups"] if asked.suffixed.keys() - narrowed.groups.keys() else []
    require(not lost, f"{name} drops {', '.join(lost)}, and so widens a request: {of_request(asked)}")
