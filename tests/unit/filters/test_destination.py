"""Why a host is none that a request wants to go to is said by the word of the request."""

from typing import Any

import pytest

from filters.destination import DestinationFilter
from moorage.ids import derived
from moorage.model import Destination
from moorage.testing import host, request

PLUGIN = DestinationFilter({})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"ignore_hosts": ("HOST0",)}, "is one that the request leaves out"),
        ({"force_hosts": ("host1",)}, "is none of the hosts that the request insists on"),
        ({"force_nodes": ("node1",)}, "has none of the nodes that the request insists on"),
        ({"host": "host1"}, "is not the host host1 that the request wants to go to"),
        ({"host": "host0", "node": "node1"}, "has not the node node1 that the request wants to go to"),
        ({"cell": derived("tests", "cell")}, "is in another cell than the request may go to"),
    ],
)
def test_a_host_is_told_by_which_word_of_the_request_it_is_refused(asked: dict[str, Any], why: str) -> None:
    wanted = {name: asked[name] for name in ("host", "node", "cell") if name in asked}
    asking = request(requested_destination=Destination(**wanted)) if wanted else request(**asked)

    assert not PLUGIN.passes(host(0), asking)
    assert PLUGIN.why(host(0), asking) == why
