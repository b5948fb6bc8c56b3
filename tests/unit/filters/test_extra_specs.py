"""Test the operators of extra specs with values of every kind, and the errors of invalid ones."""

from typing import Any

import pytest

from filters.extra_specs import requirement
from moorage import errors

PATH = "$.flavor.extra_specs['key']"


@pytest.mark.parametrize(
    ("text", "met_by", "not_met_by"),
    [
        # Without an operator: the same text.
        ("x86", ["x86"], ["X86", "x86_64", "", 86, ["x86"], {"x86": 1}, None]),
        ("5", ["5", 5], ["5.0", "05", 6, None]),
        ("true", [True, "true"], [False, "True", 1, None]),
        ("True", [True, "True"], [False, "true", None]),
        ("two words", ["two words"], ["two", None]),
        ("", [""], ["x", None]),
        # Numbers: a lone equals sign means at least.
        ("= 5", [5, 6, "5", "5.5"], [4, "4.9", "many", "nan", True, None, [5]]),
        (">= 5", [5, 6.5, "7"], [4, "x", None]),
        ("<= 5", [5, -1, "4.9"], [5.1, "x", None]),
        ("== 5", [5, 5.0, "5.0"], [4, "x", None]),
        ("!= 5", [4, "6"], [5, "5.0", "x", None]),
        ("== 1e3", [1000], [1001]),
        # Texts, letter by letter.
        ("s== 5", ["5", 5], ["5.0", None]),
        ("s== True", [True, "True"], [False, "true", None]),
        ("s!= a", ["b", 1], ["a", None, ["b"]]),
        ("s!= True", [False, "true"], [True, "True", None]),
        ("s< b", ["a", "B"], ["b", "c", None]),
        ("s<= b", ["a", "b"], ["c", None]),
        ("s> 2", ["3", "21"], ["2", "10", None]),
        ("s>= b", ["b", "c"], ["a", None]),
        # Parts of a text, members of a list.
        ("<in> avx", ["avx2", ["avx", "sse"]], ["sse", ["avx2"], None, {}]),
        ("<all-in> avx sse", ["sse avx", ["sse", "avx", "mmx"]], ["avx", ["avx"], None]),
        ("<or> a <or> b", ["a", "b"], ["c", "a b", None]),
        ("<or> a", ["a"], ["b", None]),
        ("<or> 1 <or> 2", [1, "2"], [3, None]),
    ],
)
def test_each_operator_accepts_and_refuses_these_values(text: str, met_by: list[Any], not_met_by: list[Any]) -> None:
    required = requirement(text, "key")
    assert [value for value in met_by if not required(value)] == []
    assert [value for value in not_met_by if required(value)] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<is> 5", "<is> is no operator; the known ones are: =, >=, <=, ==, !=, s==, s!=, s<, s<=, s>, s>=, <in>"),
        ("=> 5", "=> is no operator"),
        ("< 5", "< is no operator"),
        ("s= 5", "s= is no operator"),
        (">= many", "'many' is no number"),
        ("== nan", "'nan' is no number"),
        (">=", ">= takes one value, and was given 0"),
        ("= 5 6", "= takes one value, and was given 2"),
        ("s== a b", "s== takes one value, and was given 2"),
        ("<in>", "<in> takes one value, and was given 0"),
        ("<all-in>", "<all-in> takes at least one value"),
        ("<or>", "<or> stands before each value"),
        ("<or> a b", "<or> stands before each value"),
        ("<or> a <or>", "<or> stands before each value"),
        ("<or> <or> a", "<or> stands before each value"),
    ],
)
def test_an_invalid_requirement_is_refused_with_its_path(text: str, reason: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requirement(text, "key")
    assert caught.value.path == PATH
    assert caught.value.reason.startswith(reason)
