"""Send the same requests to this API and to the published Placement: they differ only as a short list says.

`make test` sends about 2,000 fixed requests. With DRILLS=long in the environment there are 20,000, different ones in
each run.
"""

import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from support.http.differential.comparison import Pair
from support.http.differential.differences import DIFFERENCES, unexplained
from support.http.differential.sequences import EVERYTHING, sequences
from support.http.differential.servers import ours, published
from support.http.differential.world import Request

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


def test_each_known_difference_has_a_reason() -> None:
    assert len(DIFFERENCES) <= 20
    assert all(len(one.reason.split()) > 5 for one in DIFFERENCES)


def test_each_phrase_names_its_source() -> None:
    assert all(phrase.source for phrase in Phrase)
