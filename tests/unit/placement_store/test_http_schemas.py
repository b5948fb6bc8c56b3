"""Test the schemas of the HTTP API by themselves: what the validation of a long list costs."""

import pytest
from support.moorage.executed_lines import executed_lines

from placement_store.http.phrases import Phrase
from placement_store.http.refusals import HTTPRefusal
from placement_store.http.schemas import NAME, UUID, Schema, Schemas
from placement_store.http.versions import v

MOST = 1024
TRAITS: Schema = {"type": "array", "items": NAME, "maxItems": MOST}
AGGREGATES: Schema = {"type": "array", "items": UUID, "uniqueItems": True, "maxItems": MOST}


def check(schema: Schema, value: object) -> None:
    Schemas({"1.0": schema}).check(v("1.0"), value, Phrase.INVALID_JSON)


@pytest.mark.parametrize(("schema", "item"), [(TRAITS, "CUSTOM_A"), (AGGREGATES, "0" * 32)])
def test_a_list_that_is_far_too_long_is_refused_without_a_check_of_each_item(schema: Schema, item: str) -> None:
    wanted = [item] * 200_000

    def refuse() -> None:
        with pytest.raises(HTTPRefusal, match="Failed validating"):
            check(schema, wanted)

    # One line of the check that all items differ; the check of an item executes more.
    assert executed_lines(refuse) < 2 * len(wanted)


def test_each_item_of_an_allowed_list_is_validated() -> None:
    allowed = ["CUSTOM_A"] * (MOST - 1)
    check(TRAITS, [*allowed, "CUSTOM_B"])
    for wrong, rule in ((7, "type"), ("", "minLength")):
        with pytest.raises(HTTPRefusal, match=f"Failed validating '{rule}'"):
            check(TRAITS, [*allowed, wrong])
    with pytest.raises(HTTPRefusal, match="Failed validating 'maxItems'"):
        check(TRAITS, [*allowed, "CUSTOM_B", "CUSTOM_C"])
