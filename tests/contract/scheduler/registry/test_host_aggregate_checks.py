"""Test that invalid requests about host aggregates are refused by name and write nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scheduler.aggregate_builders import Aggregates, marks, members
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig

from moorage import errors
from moorage.messages import CreateHostAggregate


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Two hosts, and two of one name in two cells."""
    rig = Rig(f"sqlite:///{tmp_path}/main.sqlite")
    rig.add_hosts([1, 2, 3])
    rig.add_hosts([4], cell=1, service_host="host3")
    yield rig
    rig.close()


@pytest.fixture
def aggregates(rig: Rig) -> Aggregates:
    return Aggregates(rig)


def test_the_same_request_creates_one_aggregate(rig: Rig, aggregates: Aggregates) -> None:
    message = CreateHostAggregate(request_id="once", name="one")
    first = aggregates.call(message)
    assert aggregates.call(message) == first
    assert aggregates.listed() == ["one"]


@pytest.mark.parametrize("value", ["much", "", "nan", "1e999", "1e308"])
def test_metadata_that_a_plugin_reads_as_a_number_must_be_a_number(aggregates: Aggregates, value: str) -> None:
    before = aggregates.create("one", ram_weight_multiplier="-2.5")
    with pytest.raises(errors.InvalidRequest) as caught:
        aggregates.change("one", ram_weight_multiplier=value, other="x")
    assert caught.value.path == "$.metadata['ram_weight_multiplier']"
    assert repr(value) in caught.value.reason
    with pytest.raises(errors.InvalidRequest):
        aggregates.create("two", max_io_ops_per_host=value)
    assert aggregates.listed() == ["one"]
    assert aggregates.get("one") == before
    assert aggregates.change("one", ram_weight_multiplier=None, anything=value).metadata == {"anything": value}


@pytest.mark.parametrize("zone", ["", "z" * 256])
def test_a_zone_has_a_name(aggregates: Aggregates, zone: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        aggregates.create("one", availability_zone=zone)
    assert caught.value.path == "$.metadata['availability_zone']"


def test_an_aggregate_has_at_most_256_keys(aggregates: Aggregates) -> None:
    aggregates.create("one", **{f"a{number}": "" for number in range(200)})
    with pytest.raises(errors.InvalidRequest, match="256 keys"):
        aggregates.change("one", **{f"b{number}": "" for number in range(57)})
    assert len(aggregates.change("one", **{f"b{number}": "" for number in range(56)}).metadata) == 256


def test_an_unknown_or_ambiguous_host_is_refused(rig: Rig, aggregates: Aggregates) -> None:
    aggregates.create("ssd")
    mark = marks(rig)
    with pytest.raises(errors.HostNotFound, match="nobody"):
        aggregates.add("ssd", "nobody")
    with pytest.raises(errors.HostNotFound, match="host1 in aggregate ssd"):
        aggregates.remove("ssd", "host1")
    with pytest.raises(errors.HostAggregateNotFound):
        aggregates.add("nothing", "host1")
    with pytest.raises(errors.InvalidRequest) as caught:
        aggregates.add("ssd", "host3")
    assert caught.value.path == "$.cell_uuid"
    assert marks(rig) == mark
    aggregates.add("ssd", "host3", cell=1)
    aggregates.add("ssd", "host3", cell=0)
    with pytest.raises(errors.InvalidRequest) as caught:
        aggregates.remove("ssd", "host3")
    assert caught.value.path == "$.cell_uuid"
    assert members(aggregates.remove("ssd", "host3", cell=0)) == [(CELLS[1], "host3")]
