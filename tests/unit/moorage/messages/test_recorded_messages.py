"""Test that messages of released versions are understood, and sent in the same form if they have no new fields."""

import json
from typing import Any

import msgspec
import pytest
from support.bus.message_samples import RECORDS, VERSIONS, every_message, samples, versions_of

from moorage.messages.wire import Message, decode, decode_strictly, encode

KINDS = {(kind.topic, kind.method): kind for kind in every_message()}
RECORDED = sorted(path.stem for path in RECORDS.glob("[!rf]*-*.json"))


def recorded(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def as_sent(value: object) -> Any:
    return json.loads(json.dumps(encode(value)))


@pytest.mark.parametrize("name", RECORDED)
def test_a_message_of_a_released_version_is_decoded_and_encoded_to_what_it_was(name: str) -> None:
    topic, _, version = name.rpartition("-")
    for one in recorded(name):
        kind = KINDS[topic, one["method"]]
        message = decode_strictly(kind, one["content"])
        assert as_sent(message) == one["content"], one["method"]
        assert message.lowest_version() in (version, kind.version), one["method"]


@pytest.mark.parametrize("version", ["1.5", "1.8"])
def test_an_answer_of_a_released_version_is_decoded_and_encoded_to_what_it_was(version: str) -> None:
    for one in recorded(f"replies-{version}"):
        kind = KINDS[one["topic"], one["method"]].reply_type()
        assert as_sent(decode(kind, one["content"])) == one["content"], one["method"]


def test_every_message_of_every_released_version_is_on_record() -> None:
    known = {(*name.rsplit("-", 1), one["method"]) for name in RECORDED for one in recorded(name)}
    wanted = {(kind.topic, version, kind.method) for kind in KINDS.values() for version in versions_of(kind)}
    assert {each for each in wanted if each[1] in VERSIONS} <= known


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_message_with_all_fields_is_sent_at_its_newest_version(kind: type[Message[Any]]) -> None:
    newest = kind.newest_version()
    full = next(samples(kind, newest))["content"]
    assert msgspec.convert(full, kind).lowest_version() == newest


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_guard_is_an_optional_field_of_its_own_version(kind: type[Message[Any]]) -> None:
    assert kind.guards <= set(kind.since)
    without = next(samples(kind, kind.version))["content"]
    message = msgspec.convert(without, kind)
    assert message.unguarded() == message
