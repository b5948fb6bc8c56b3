"""The JSON of messages: msgspec encodes and decodes what it can, and the AMQP library the rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import serialization

import moorage.bus.message_json  # noqa: F401 - for what it registers

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def _sent(message: object) -> tuple[str, str, object]:
    # The messaging library names no serializer, either.
    kind, encoding, payload = serialization.dumps(message)  # type: ignore[no-untyped-call]
    return str(kind), str(encoding), payload


def _received(message: object) -> object:
    kind, encoding, payload = _sent(message)
    return serialization.loads(payload, kind, encoding)  # type: ignore[no-untyped-call]


@given(_VALUES)
def test_a_message_arrives_as_it_was_sent(message: object) -> None:
    assert _received({"args": message}) == {"args": message}


def test_an_object_in_the_form_of_the_librarys_typed_values_arrives_unchanged() -> None:
    hints = {"__type__": "uuid", "__value__": {"hex": "no uuid"}}
    assert _received({"args": hints}) == {"args": hints}


def test_a_text_that_is_not_valid_unicode_arrives_as_it_was_sent() -> None:
    assert _received({"reason": "\udcff"}) == {"reason": "\udcff"}


def test_numbers_that_json_does_not_have_arrive_as_null_as_in_stored_documents() -> None:
    assert _received({"seconds": math.nan, "left": [math.inf]}) == {"seconds": None, "left": [None]}


def test_a_former_release_may_send_numbers_that_json_does_not_have() -> None:
    received = serialization.loads('{"seconds": NaN, "left": Infinity}', "application/json", "utf-8")  # type: ignore[no-untyped-call]
    assert math.isnan(received["seconds"])
    assert received["left"] == math.inf


def test_an_integer_of_any_size_arrives_as_it_was_sent() -> None:
    assert _received({"left": 10**40}) == {"left": 10**40}


def test_messages_have_the_content_type_and_the_encoding_that_former_releases_send() -> None:
    assert _sent({})[:2] == ("application/json", "utf-8")


def test_a_message_that_is_not_json_is_refused() -> None:
    with pytest.raises(Exception, match="Expecting"):
        serialization.loads("{", "application/json", "utf-8")  # type: ignore[no-untyped-call]
