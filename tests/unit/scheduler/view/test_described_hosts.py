"""Test that descriptions of hosts are recomputed only for changed hosts, with the same result as for all.

The view is followed step by step and compared with one that was read at once.
"""

import cProfile
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler.builders import host_cache, host_row

from moorage.plugin import BadValue, measured
from scheduler.registry.hosts import HostRow
from scheduler.view.host_attributes import DictionaryColumn, HostAttributes
from scheduler.view.host_cache import HostCache
from scheduler.view.snapshot import Snapshot

_SCALARS = st.sampled_from([0, 0.0, False, 1, 1.0, True, "1", "x", None, 2.5])
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["metrics", "metrics.load", "arch"]),
    st.one_of(_SCALARS, st.dictionaries(st.sampled_from(["load", "io"]), _SCALARS), st.lists(_SCALARS, max_size=2)),
)
_METADATA = st.dictionaries(
    st.sampled_from(["rack", "pci:a", "pci:b", "ram_weight_multiplier"]),
    st.frozensets(st.sampled_from(["1", "2.5", "x"]), min_size=1),
)
_PROPERTIES = st.dictionaries(st.sampled_from(["os=linux", "os=windows"]), st.integers(1, 3))
_HOSTS = st.builds(
    lambda number, attributes, metadata, properties: host_row(
        number, attributes=attributes, metadata=metadata, image_properties=properties
    ),
    st.integers(0, 6),
    _ATTRIBUTES,
    _METADATA,
    _PROPERTIES,
)
#: Each step is one read: changed hosts, hosts that are gone, and whether the view is used before the next read.
_STEPS = st.lists(
    st.tuples(st.lists(_HOSTS, max_size=4), st.sets(st.integers(0, 6), max_size=3), st.booleans()),
    min_size=1,
    max_size=8,
)


def answers_of(view: Snapshot) -> dict[str, dict[str, Any]]:
    """Return all answers of a view about the descriptions of its hosts, by question and host."""
    names = [host.service_host for host in view.hosts]
    answers: dict[str, Iterable[Any]] = {
        "load": map(repr, view.number_from("metrics.load", measured).tolist()),
        "load once more": map(repr, view.number_from("metrics.load", lambda value: float(value is None)).tolist()),
        "is x": view.where_attribute("arch", lambda value: value == "x").tolist(),
        "is one": view.where_attribute("metrics", lambda value: value is True or value == "1").tolist(),
        "rack": view.where_metadata("rack", lambda values: "x" in values).tolist(),
        "nothing": view.where_metadata("none has it", lambda values: not values).tolist(),
        "pci": view.where_metadata_under("pci:", lambda values: len(values) > 1).tolist(),
        "linux": view.servers_with("os", "linux").tolist(),
        "other": view.servers_with("os", "other").tolist(),
    }
    return {question: dict(zip(names, values, strict=True)) for question, values in answers.items()}


@given(_STEPS)
def test_a_view_that_is_followed_describes_hosts_like_one_that_is_read_at_once(
    steps: list[tuple[list[HostRow], set[int], bool]],
) -> None:
    followed, known = HostCache(), dict[int, HostRow]()
    for changed, gone, is_used in steps:
        known = {number: host for number, host in known.items() if number not in gone}
        known |= {host.id: host for host in changed}
        followed.update(hosts=changed, gone_hosts=gone)
        if not is_used:
            continue
        shown, fresh = followed.snapshot(), host_cache(known.values(), []).snapshot()
        assert answers_of(shown) == answers_of(fresh)
        assert shown.host_attributes.metadata_keys == fresh.host_attributes.metadata_keys


def test_a_snapshot_stays_unchanged_when_hosts_change_after_it() -> None:
    shown = host_cache([host_row(number, attributes={"load": number}) for number in range(4)])
    before = shown.snapshot()
    assert before.number("load").tolist() == [0.0, 1.0, 2.0, 3.0]
    shown.update(hosts=[host_row(1, attributes={"load": 9})])
    assert shown.snapshot().number("load").tolist() == [0.0, 9.0, 2.0, 3.0]
    assert before.number("load").tolist() == [0.0, 1.0, 2.0, 3.0]
    assert before.where_attribute("load", lambda value: value == 1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("kind", ["attribute", "metadata", "servers_with"])
def test_all_names_that_no_host_has_share_one_column(kind: str) -> None:
    described = {"attributes": {"arch": {"a.b": 1}}, "metadata": {"arch.a.b": frozenset("1")}}
    shown = host_cache([host_row(number, image_properties={"arch.a.b": 1}, **described) for number in range(4)])
    column = getattr(shown.snapshot().host_attributes, kind)
    known = column("arch.a.b")

    unknown = [column(f"{name}{number}") for name in ("x", "arch.x", "arch.a.b.") for number in range(300)]

    assert unknown == unknown[:1] * 900
    assert not unknown[0].values[0]
    # The columns of other names are still there.
    assert column("arch.a.b") is known
    assert [*known.values] == [*column("arch.a.b").values] != [*unknown[0].values]


def test_a_name_that_no_host_had_is_found_once_one_has_it() -> None:
    shown = host_cache([host_row(number) for number in range(3)])
    assert shown.snapshot().where_attribute("a.b", lambda value: value == 1).tolist() == [False] * 3
    shown.update(hosts=[host_row(1, attributes={"a": {"b": 1}}, image_properties={"os=linux": 2})])
    assert shown.snapshot().where_attribute("a.b", lambda value: value == 1).tolist() == [False, True, False]
    assert shown.snapshot().servers_with("os", "linux").tolist() == [0, 2, 0]


def test_a_bad_value_that_no_host_has_any_more_is_no_error() -> None:
    shown = host_cache([host_row(number, attributes={"load": number}) for number in range(4)])
    shown.snapshot().number("load")
    shown.update(hosts=[host_row(0, attributes={"load": "much"})])
    with pytest.raises(BadValue, match="much"):
        shown.snapshot().number("load")
    shown.update(hosts=[host_row(0, attributes={"load": 7})])
    assert shown.snapshot().number("load").tolist() == [7.0, 1.0, 2.0, 3.0]


def test_large_values_cost_no_step_for_each_of_their_parts() -> None:
    hosts = [
        host_row(number, attributes={"cpus": {"siblings": [[n, n + 1] for n in range(100)]}}) for number in range(9)
    ]
    column, profile = host_cache(hosts).snapshot().host_attributes.attribute, cProfile.Profile()

    values = profile.runcall(column, "cpus").values

    assert values == [hosts[0].attributes["cpus"]]
    assert sum(entry.callcount for entry in profile.getstats()) < 9 * 100


def test_values_are_equal_in_any_order_of_their_names_and_different_by_the_type_of_a_number() -> None:
    values = [{"a": 1, "b": [{"c": 2, "d": 3}]}, {"b": [{"d": 3, "c": 2}], "a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}]

    assert [repr(value) for value in DictionaryColumn(values).values] == [repr(values[n]) for n in (0, 2, 3, 4)]


def test_only_new_values_are_computed() -> None:
    computed: list[Any] = []

    def compute(value: Any) -> float:
        computed.append(value)
        return float(value)

    host_attributes = HostAttributes([host_row(number, attributes={"load": number}) for number in range(100)])
    host_attributes.attribute("load").numbers(compute, compute)
    assert len(computed) == 100
    hosts = [host_row(number, attributes={"load": number + 1000 * (number < 2)}) for number in range(100)]
    host_attributes = host_attributes.updated(hosts, {0, 1, 2})
    # These attributes are never used.
    host_attributes = host_attributes.updated(hosts, {3})
    numbers = host_attributes.attribute("load").numbers(compute, compute)
    assert sorted(computed[100:]) == [1000, 1001]
    assert numbers.tolist() == [1000.0, 1001.0, *map(float, range(2, 100))]


def test_a_column_does_not_keep_former_values() -> None:
    loads = DictionaryColumn(range(10))
    for step in range(1000):
        loads = loads.updated({step % 10: 10 + step}, 10)
    assert sorted(loads.values) == list(range(1000, 1010))
    assert len(loads._values) <= 11


def test_an_update_without_a_difference_returns_the_same_column() -> None:
    loads = DictionaryColumn([1, 2, 2])
    assert loads.updated({0: 1, 2: 2}, 3) is loads
    assert loads.updated({0: 1.0}, 3) is not loads, "1 and 1.0 are two values"
    assert loads.updated({}, 2).where(lambda value: value == 2).tolist() == [False, True]


@pytest.mark.parametrize(
    ("before", "after"), [(True, 1), (1, 1.0), (0.0, False), ([1], [True]), ({"a": 1}, {"a": 1.0})]
)
def test_a_value_that_changes_only_its_kind_is_a_new_value(before: Any, after: Any) -> None:
    # A column is updated if few of its hosts have changed, and otherwise built anew.
    shown = host_cache([host_row(number, attributes={"ssd": before}) for number in range(9)])

    def where_it_is(value: Any) -> list[bool]:
        return list(shown.snapshot().where_attribute("ssd", lambda found: repr(found) == repr(value)))

    assert where_it_is(before) == [True] * 9
    shown.update(hosts=[host_row(0, attributes={"ssd": after})])
    assert where_it_is(after) == [True] + [False] * 8
    assert shown.snapshot().host(0).where_attribute("ssd", lambda found: repr(found) == repr(after))
