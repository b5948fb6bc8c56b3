"""Send the same requests to this API and to the published Placement: they differ only as a short list says.

`make test` sends about 2,000 fixed requests. With DRILLS=long in the environment there are 20,000, different ones in
each run.
"""

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support.http.differential.comparison import Exchange, Pair, Reply
from support.http.differential.differences import DIFFERENCES, unexplained
from support.http.differential.sequences import EVERYTHING, sequences
from support.http.differential.servers import ours, published
from support.http.differential.world import AGGREGATES, CONSUMERS, PROVIDERS, Generation, Request

from placement_store.http.phrases import Phrase

LONG = os.environ.get("DRILLS") == "long"
REQUESTS, OF_ONE_STORE = (20_000, 30) if LONG else (2_000, 20)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers."""
    folder = tmp_path_factory.mktemp("differential")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ours(folder) as own, published(folder) as other:
            yield Pair(own, other)


@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_the_published_placement_gives_the_same_answers(pair: Pair) -> None:
    asked, differs = 0, False

    @settings(
        # Each sequence ends with requests for the whole content, so this is more than enough.
        max_examples=REQUESTS // 30,
        deadline=None,
        database=None,
        derandomize=not LONG,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences(OF_ONE_STORE))
    def compare(sequence: list[Request]) -> None:
        nonlocal asked, differs
        # After a difference, the sequence is shrunk.
        if asked >= REQUESTS and not differs:
            return
        pair.empty()
        for request in [*sequence, *EVERYTHING]:
            for exchange in pair.ask(request):
                asked += 1
                differs = differs or bool(unexplained(exchange))
                assert not unexplained(exchange), exchange.told()
                if exchange.parts_ways:
                    return

    compare()
    assert asked >= REQUESTS


#: Requests that no sequence draws: queries that are no text, and headers in unusual forms.
ODD = [
    *(
        Request("GET", f"{path}%FF")
        for path in ("/resource_providers?name=", "/traits?name=", "/allocation_candidates?")
    ),
    *(Request("GET", f"/traits?name={text}") for text in ("in", "startswith", "in:", "like:A")),
    *(Request("GET", f"/resource_providers?required={text}", "1.39") for text in ("in:!HW_CPU_X86_AVX2", "in:A,!B")),
    Request("GET", "/resource_providers", headers={"Content-Length": "none"}),
    Request("PUT", "/resource_providers/none/aggregates", "1.0"),
    Request("GET", "/resource_providers/none/aggregates", "1.0", headers={"Accept": "text/css"}),
    Request("PUT", "/resource_providers/none/aggregates", "1.0", body=[]),
    *(
        Request("GET", "/resource_providers", headers={"Accept": accepted})
        for accepted in ("APPLICATION/JSON", "application/json,", ",,*/*", "json", "application/json;q=2", "text/css")
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_odd_requests_are_answered_alike(pair: Pair, odd: Request) -> None:
    for exchange in pair.ask(odd):
        assert not unexplained(exchange), exchange.told()


_NESTED = [
    Request("POST", "/resource_providers", body={"name": "name0", "uuid": PROVIDERS[0]}),
    Request(
        "POST",
        "/resource_providers",
        body={"name": "name1", "uuid": PROVIDERS[1], "parent_provider_uuid": PROVIDERS[0]},
    ),
    *(
        Request(
            "PUT",
            f"/resource_providers/{uuid}/inventories",
            body={"resource_provider_generation": Generation(uuid), "inventories": {"VCPU": {"total": 8}}},
        )
        for uuid in PROVIDERS[:2]
    ),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("resources=VCPU:1&resources1=VCPU:1", (4, 4)),
        ("resources1=VCPU:1&required2=!CUSTOM_T&same_subtree=1,2&group_policy=none", (4, 0)),
        (f"resources1=VCPU:1&in_tree2={PROVIDERS[1]}&same_subtree=1,2&group_policy=none", (4, 0)),
    ],
)
def test_defects_of_placement_with_candidates_are_listed(pair: Pair, query: str, numbers: tuple[int, int]) -> None:
    pair.empty()
    parameters = tuple((name, value) for name, _, value in (part.partition("=") for part in query.split("&")))
    asked = Request("GET", "/allocation_candidates", query=parameters)
    for request in [Request("PUT", "/traits/CUSTOM_T"), *_NESTED, asked]:
        [exchange] = pair.ask(request)
        assert not unexplained(exchange), exchange.told()
    found = [len(reply.document["allocation_requests"]) for reply in (exchange.ours, exchange.theirs)]
    assert tuple(found) == numbers
    assert "document" in exchange.differing


@pytest.mark.filterwarnings("ignore")
def test_a_group_of_sharing_providers_goes_with_every_tree(pair: Pair) -> None:
    pair.empty()
    inventories = [{"DISK_GB": {"total": 8}}, {"VCPU": {"total": 8}}, {"VCPU": {"total": 8}}]
    for number, (uuid, held) in enumerate(zip(PROVIDERS, inventories, strict=False)):
        at, generation = f"/resource_providers/{uuid}", {"resource_provider_generation": Generation(uuid)}
        traits = ["MISC_SHARES_VIA_AGGREGATE"] if number == 0 else []
        for request in (
            Request("POST", "/resource_providers", body={"name": f"name{number}", "uuid": uuid}),
            Request("PUT", f"{at}/inventories", body={**generation, "inventories": held}),
            Request("PUT", f"{at}/aggregates", body={**generation, "aggregates": AGGREGATES[:1]}),
            Request("PUT", f"{at}/traits", body={**generation, "traits": traits}),
        ):
            [exchange] = pair.ask(request)
            assert not unexplained(exchange), exchange.told()
    asked = Request("GET", "/allocation_candidates", query=(("resources", "DISK_GB:1"), ("resources1", "VCPU:1")))
    [exchange] = pair.ask(asked)
    assert not unexplained(exchange), exchange.told()
    ours, theirs = (len(reply.document["allocation_requests"]) for reply in (exchange.ours, exchange.theirs))
    assert (ours, theirs < ours) == (2, True)


@pytest.mark.filterwarnings("ignore")
def test_the_aggregates_of_a_provider_and_of_its_root_count_together(pair: Pair) -> None:
    pair.empty()
    members = [
        Request(
            "PUT",
            f"/resource_providers/{uuid}/aggregates",
            body={"resource_provider_generation": Generation(uuid), "aggregates": [aggregate]},
        )
        for uuid, aggregate in zip(PROVIDERS[:2], AGGREGATES, strict=True)
    ]
    query = (("resources", "VCPU:1"), *(("member_of", aggregate) for aggregate in AGGREGATES))
    for request in [*_NESTED, *members, Request("GET", "/allocation_candidates", query=query)]:
        [exchange] = pair.ask(request)
        assert not unexplained(exchange), exchange.told()
    ours, theirs = (reply.document["allocation_requests"] for reply in (exchange.ours, exchange.theirs))
    assert [list(one["allocations"]) for one in ours] == [[PROVIDERS[1]]]
    assert theirs == []


@pytest.mark.parametrize(
    ("bumped", "reallocated", "differing"),
    [
        ({PROVIDERS[0]: 1, PROVIDERS[1]: 1}, {PROVIDERS[1]}, set()),
        ({PROVIDERS[0]: 2, PROVIDERS[1]: 1}, {PROVIDERS[1]}, {"providers"}),
        ({PROVIDERS[0]: 1, PROVIDERS[1]: 2}, {PROVIDERS[1]}, {"providers"}),
        ({PROVIDERS[0]: 1, PROVIDERS[1]: 1}, {PROVIDERS[0]}, {"providers"}),
        ({PROVIDERS[1]: 1}, {PROVIDERS[1]}, {"providers"}),
    ],
    ids=["a loss is bumped too", "a bump of two", "a loss is bumped by two", "without a loss", "a bump is missing"],
)
def test_only_single_bumps_for_changed_allocations_may_exceed_those_of_placement(
    bumped: dict[str, int], reallocated: set[str], differing: set[str]
) -> None:
    theirs = Reply(
        status=204,
        headers={},
        document=None,
        details=(),
        phrases=(),
        providers={PROVIDERS[0]: 1},
        consumers={CONSUMERS[0]: 1},
        reallocated={PROVIDERS[0]},
        text="",
    )
    request = Request("PUT", f"/allocations/{CONSUMERS[0]}")

    exchange = Exchange(request, replace(theirs, providers=bumped, reallocated=reallocated), theirs)

    assert unexplained(exchange) == differing


def test_each_known_difference_has_a_reason() -> None:
    assert len(DIFFERENCES) <= 20
    assert all(len(one.reason.split()) > 5 for one in DIFFERENCES)


def test_each_phrase_names_its_source() -> None:
    assert all(phrase.source for phrase in Phrase)
