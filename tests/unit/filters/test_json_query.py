"""Test the JSON query of a request: its operators and names, and the refusal of invalid queries."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler.builders import host_cache, host_row, provider
from support.scheduler.plugin_cases import attributes, hinted, passing, refusal

from filters.json_query import JsonQueryFilter
from moorage import errors
from moorage.plugin.attributes import attribute
from moorage.testing.builders import inventory

PLUGIN = JsonQueryFilter({})
HOST = {"rack": "a1", "cores": 16, "load": 0.5, "ssd": True, "cpu_info": {"vendor": "Intel"}, "features": ["avx"]}
VIEW = attributes(HOST)


@pytest.mark.parametrize(
    ("query", "is_true"),
    [
        (["=", "$rack", "a1"], True),
        (["=", "$rack", "a2"], False),
        (["=", "a1", "$rack"], True),
        (["=", "$cores", 16], True),
        (["=", "$cores", 16.0], True),
        (["=", "$ssd", True], True),
        (["=", "$cpu_info.vendor", "Intel"], True),
        (["<", "$cores", 17], True),
        (["<", "$cores", 16], False),
        (["<=", "$cores", 16], True),
        ([">", "$load", 0.4], True),
        ([">=", "$cores", 17], False),
        (["<", 15, "$cores"], True),
        (["<", 16, "$cores"], False),
        ([">=", 16, "$cores"], True),
        (["<", "$rack", "a2"], True),
        # The first operand is compared with each of the others.
        ([">", "$cores", 4, 8], True),
        ([">", "$cores", 4, 16], False),
        (["in", "$rack", "a2", "a1"], True),
        (["in", "$rack", "a2", "a3"], False),
        (["in", "$cores", 8, 16], True),
        # Values of different types, and missing values, are neither equal nor greater nor less.
        (["=", "$cores", "16"], False),
        (["=", "$ssd", 1], False),
        (["<", "$rack", 5], False),
        (["=", "$nothing", "a1"], False),
        ([">=", "$nothing", 0], False),
        (["=", "$features", "avx"], False),
        (["not", ["=", "$nothing", "a1"]], True),
        (["not", ["=", "$rack", "a1"]], False),
        (["and", ["=", "$rack", "a1"], [">", "$cores", 8]], True),
        (["and", ["=", "$rack", "a1"], [">", "$cores", 32]], False),
        (["or", ["=", "$rack", "a9"], [">", "$cores", 8]], True),
        (["or", ["=", "$rack", "a9"]], False),
        (["not", ["or", ["=", "$rack", "a9"], ["and", ["=", "$ssd", True], ["<", "$cores", 8]]]], True),
    ],
)
def test_a_query_is_true_or_false_for_a_host(query: Any, is_true: bool) -> None:
    assert passing(PLUGIN, VIEW, hinted(query=json.dumps(query))) == ([0] if is_true else [])


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ([">=", "$free_ram_mb", 1000], [0, 2]),
        ([">", "$free_disk_mb", 5 * 1024], [0]),
        (["=", "$vcpus_used", 4], [1]),
        (["in", "$num_instances", 1, 2], [1, 2]),
        (["<", 0, "$num_io_ops"], [2]),
        (["and", [">=", "$free_ram_mb", 1000], ["<", "$num_instances", 1]], [0]),
    ],
)
def test_values_known_of_every_host_have_novas_names(query: Any, left: list[int]) -> None:
    rows = [host_row(0), host_row(1), host_row(2, io_ops=3)]
    disk: dict[str, Any] = {"DISK_GB": inventory(10)}
    providers = [
        provider(rows[0], VCPU=inventory(8), MEMORY_MB=inventory(2000, used=1000), **disk),
        provider(rows[1], VCPU=inventory(8, used=4), MEMORY_MB=inventory(1000, used=1), DISK_GB=inventory(5)),
        provider(rows[2], VCPU=inventory(8), MEMORY_MB=inventory(500, allocation_ratio=2.0)),
    ]
    shown = host_cache(rows, providers)
    shown.update(instances={1: 1, 2: 2})
    assert passing(PLUGIN, shown.snapshot(), hinted(query=json.dumps(query))) == left


def test_without_a_query_all_hosts_pass() -> None:
    assert not PLUGIN.concerns(hinted())
    assert passing(PLUGIN, VIEW, hinted()) == [0]
    assert passing(PLUGIN, VIEW, hinted(query=" ")) == [0]


@pytest.mark.parametrize(
    ("query", "place", "reason"),
    [
        ("[", "", "it is no JSON"),
        ("nothing", "", "it is no JSON"),
        ('["=", "$a", NaN]', "", "it is no JSON"),
        ("[" * 4000, "", "it is no JSON"),
        ("{}", "", "it is no list of an operator"),
        ("[]", "", "it is no list of an operator"),
        ('"$rack"', "", "it is no list of an operator"),
        ('["!=", "$rack", "a1"]', "[0]", "'!=' is no operator; the known ones are: =, <, <=, >, >=, in, not, and, or"),
        ('[["="], 1]', "[0]", "['='] is no operator"),
        ('["=", "$rack"]', "", "= takes at least two operands, and was given 1"),
        ('["in"]', "", "in takes at least two operands, and was given 0"),
        ('["not"]', "", "not takes one query, not 0"),
        ('["not", ["=", "$a", 1], ["=", "$a", 1]]', "", "not takes one query, not 2"),
        ('["and"]', "", "and takes queries, not 0"),
        ('["and", ["=", "$rack", "a1"], ["or", ["~", "$a", 1]]]', "[2][1][0]", "'~' is no operator"),
        ('["and", "$ssd"]', "[1]", "it is no list of an operator"),
        ('["=", 1, 1]', "", "= compares one $name"),
        ('["=", "$a", "$b"]', "", "= compares one $name"),
        ('["<", 1, "$a", 3]', "", "< compares one $name"),
        ('["in", "a1", "$rack"]', "", "in compares one $name"),
        ('["=", "$a", null]', "[2]", "it is neither a text nor a number"),
        ('["=", "$a", ["x"]]', "[2]", "it is neither a text nor a number"),
        ('["<", "$free_ram_mb", "much"]', "[2]", "$free_ram_mb is compared with numbers"),
        ('["<", true, "$free_ram_mb"]', "[1]", "$free_ram_mb is compared with numbers"),
        ('["in", "$num_instances", 1, "2"]', "[3]", "$num_instances is compared with numbers"),
        (f'["<", "$free_ram_mb", 1{"0" * 400}]', "[2]", "$free_ram_mb is compared with numbers of at most 308 digits"),
        (json.dumps(["=", "$a", 1]).join(['["not", ' * 40, "]" * 40]), "[1]" * 32, "it is more than 32 levels deep"),
        (
            json.dumps(["or", *(["=", f"$a{n}", 1] for n in range(33))]),
            "",
            "it has more than 32 names",
        ),
        (json.dumps(["=", "$a", *range(65)]), "", "it makes more than 64 comparisons"),
        (json.dumps(["or", *(["in", "$a", 1, 2] for _ in range(65))]), "", "it makes more than 64 comparisons"),
    ],
)
def test_an_invalid_query_is_refused_with_its_path(query: str, place: str, reason: str) -> None:
    path, why = refusal(PLUGIN, hinted(query=query))
    assert path == f"$.scheduler_hints.query{place}"
    assert why.startswith(reason)


def test_a_value_is_sought_among_many_in_one_step() -> None:
    compared = 0

    class Value(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    query = json.dumps(["in", "$host_ip", *(f"10.0.1.{number}" for number in range(250)), "10.0.0.1"])
    assert passing(PLUGIN, attributes({"host_ip": Value("10.0.0.1")}), hinted(query=query)) == [0]
    assert compared < 10


def test_an_attribute_with_any_number_of_dots_is_found_in_few_lookups() -> None:
    class Attributes(dict[str, Any]):
        looked_up = 0

        def get(self, *arguments: Any) -> Any:
            self.looked_up += 1
            return super().get(*arguments)

    known = Attributes({"a": {"b.c": 1}, "a.b": {"d": 2}})
    paths = "a.b.c", "a.b.d", "a.b", "a.b.e", "." * 4000
    assert [attribute(known, path) for path in paths] == [1, 2, {"d": 2}, None, None]
    # A look-up for every leading part of the path would take a minute on ten thousand hosts.
    assert known.looked_up < 50


_anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["$rack", "=", "in"]),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=2), parts, max_size=2),
)


WITH_AN_EMPTY_HOST = attributes(HOST, {})


@given(_anything.map(json.dumps) | st.text(max_size=30))
def test_any_text_is_either_refused_or_answered(text: str) -> None:
    try:
        PLUGIN.check(hinted(query=text))
    except errors.InvalidRequest:
        return
    passing(PLUGIN, WITH_AN_EMPTY_HOST, hinted(query=text))
