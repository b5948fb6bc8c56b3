"""Test the one-line summary of an explanation: its length, its numbers of hosts, and its words."""

import re

from hypothesis import given
from hypothesis import strategies as st

from moorage.model import Explanation, FilterCount, Shortage
from moorage.model.explanation import SUMMARY_LENGTH

_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=300)
_CLASSES = st.one_of(
    st.sampled_from(["VCPU", "MEMORY_MB", "VGPU"]), st.from_regex(r"CUSTOM_[A-Z]{1,240}", fullmatch=True)
)
_SHORTAGES = st.builds(
    Shortage,
    resource_class=_CLASSES,
    hosts=st.integers(1, 2_000_000),
    what=st.sampled_from(["short", "absent", "uneven"]),
    asked=st.integers(1, 2**31),
    nearest=st.none() | _TEXTS,
    lacking=st.floats(0, 2**40),
)


@st.composite
def explanations(draw: st.DrawFn) -> Explanation:
    """Draw an explanation of a decision in which each filter removes some of the remaining hosts."""
    feasible = draw(st.integers(0, 100_000))
    counts: list[FilterCount] = []
    left = feasible
    for name in draw(st.lists(_TEXTS, max_size=8)):
        shortages = tuple(draw(st.lists(_SHORTAGES, max_size=4)))
        removed = sum(each.hosts for each in shortages) + draw(st.integers(0, 1_000_000))
        left += removed
        counts.append(FilterCount(name=name, hosts=left, removed=removed, reason=draw(_TEXTS), shortages=shortages))
    instances = draw(st.integers(1, 1000))
    return Explanation(
        hosts=left,
        filters=tuple(reversed(counts)),
        feasible=feasible,
        named_hosts=draw(st.dictionaries(_TEXTS, _TEXTS, max_size=4)),
        lost_races=draw(st.dictionaries(_TEXTS, st.integers(1, 5), max_size=3)),
        instances=instances,
        placed=draw(st.integers(0, instances)),
    )


@given(explanations())
def test_a_summary_is_one_line_and_never_longer_than_its_limit(explanation: Explanation) -> None:
    summary = explanation.summary()
    assert len(summary) <= SUMMARY_LENGTH
    assert len(summary.splitlines()) == 1


@st.composite
def plain_explanations(draw: st.DrawFn) -> Explanation:
    """Draw an explanation with words without digits, so that all numbers in its summary are numbers of hosts."""
    counts, left = [], draw(st.integers(1, 100_000))
    feasible = left
    for number in range(draw(st.integers(0, 30))):
        removed = draw(st.integers(0, 1_000_000))
        left += removed
        reason = "is " + "refused by a filter called " + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"[number]
        counts.append(FilterCount(name="f", hosts=left, removed=removed, reason=reason))
    return Explanation(hosts=left, filters=tuple(reversed(counts)), feasible=feasible)


@given(plain_explanations())
def test_the_numbers_of_a_summary_add_up_to_all_hosts(explanation: Explanation) -> None:
    head, _, tail = explanation.summary().partition(": ")
    feasible, hosts = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+", head))
    parts = [int(part.split()[0].replace(",", "")) for part in tail.split("; ") if part]
    assert hosts == explanation.hosts
    assert feasible + sum(parts) == hosts


@given(plain_explanations())
def test_the_largest_numbers_come_first(explanation: Explanation) -> None:
    tail = explanation.summary().partition(": ")[2]
    named = [int(part.split()[0].replace(",", "")) for part in tail.split("; ") if part and "other reason" not in part]
    assert named == sorted(named, reverse=True)


def test_the_summary_of_a_refusal_in_a_large_cloud() -> None:
    short = Shortage(resource_class="MEMORY_MB", hosts=6100, asked=4096, nearest="cmp-0412", lacking=512.0)
    explanation = Explanation(
        hosts=9000,
        filters=(
            FilterCount(name="zone", hosts=9000, removed=2900, reason="is in another zone"),
            FilterCount(name="resources", hosts=6100, removed=6100, reason="has not enough room", shortages=(short,)),
        ),
    )
    assert explanation.summary() == (
        "0 of 9,000 hosts: 6,100 short of MEMORY_MB, nearest cmp-0412 by 512; 2,900 in another zone"
    )


def test_reasons_have_the_plural_form_after_a_number_of_hosts() -> None:
    def removed(count: int, reason: str) -> FilterCount:
        return FilterCount(name="f", hosts=count, removed=count, reason=reason)

    explanation = Explanation(
        hosts=1111,
        filters=(removed(1000, "has not the traits"), removed(100, "was refused"), removed(10, "does not like it")),
        feasible=1,
    )
    assert explanation.summary() == ("1 of 1,111 hosts: 1,000 have not the traits; 100 were refused; 10 do not like it")


def test_an_explanation_recorded_by_an_earlier_version_is_summarised() -> None:
    explanation = Explanation(hosts=3, filters=(FilterCount(name="resources", hosts=3, removed=2),))
    assert explanation.summary() == "0 of 3 hosts: 2 removed by resources; 1 not looked at"


def test_named_hosts_and_lost_races_are_included_if_there_is_room() -> None:
    explanation = Explanation(
        hosts=2,
        filters=(FilterCount(name="zone", hosts=2, removed=2, reason="is in another zone"),),
        named_hosts={"cmp-9": "is not known"},
        lost_races={"cmp-1": 2},
    )
    assert explanation.summary() == ("0 of 2 hosts: 2 in another zone; cmp-9 is not known; others were faster on 1")
