"""Test that a service whose name cannot be the name of a queue, or of a service, does not start."""

import pytest

from moorage import errors
from moorage.bus.bus import Bus
from moorage.config import options


@pytest.mark.parametrize("name", ["", "one ", "\t", "n" * 201, "ä" * 101])
def test_a_name_that_a_service_cannot_have_is_refused_with_the_options_that_give_it(name: str) -> None:
    bus = Bus(options.new({"DEFAULT": {"transport_url": "inproc://"}}))
    try:
        with pytest.raises(errors.ConfigurationError, match=r"See --name; for an agent, --agent and \[compute\] agent"):
            bus.server("placement", name, [])
    finally:
        bus.close()
