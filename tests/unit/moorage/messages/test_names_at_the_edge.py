"""Test the check of incoming names: patterns cover the whole text, no new name has control characters at any place."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec
import pytest

from moorage import errors, ids
from moorage.messages import (
    BuildInstances,
    CreateHostAggregate,
    CreateResourceProvider,
    CreateServerGroup,
    SetHostAggregate,
    UpdateResourceProvider,
    wire,
)
from moorage.model import ChildProvider, HostReport, ProviderReport, ResourceProvider, Value
from moorage.model.basis import fault_of_name
from placement_store.http.resources import RESOURCES
from placement_store.http.versions import Version

UUID = ids.derived("a name at the edge")


def parts(kind: Any) -> Iterator[Any]:
    """Yield the parts of a type at all levels."""
    yield from getattr(kind, "__metadata__", ())
    for part in get_args(kind):
        yield part
        yield from parts(part)


def every_value(kind: type[Value] = Value) -> Iterator[type[Value]]:
    yield kind
    for child in kind.__subclasses__():
        yield from every_value(child)


def patterns_within(schema: Any) -> Iterator[str]:
    """Yield the patterns of a JSON schema, and those of its keys."""
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name == "pattern" and isinstance(value, str))
        yield from schema.get("patternProperties", ())
        for value in schema.values():
            yield from patterns_within(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from patterns_within(value)


def test_no_pattern_of_a_message_lets_a_line_feed_through_at_its_end() -> None:
    found = {
        part.pattern
        for kind in every_value()
        for field in msgspec.structs.fields(kind)
        for part in parts(field.type)
        if isinstance(part, msgspec.Meta) and part.pattern is not None
    }
    assert len(found) >= 5
    assert not [pattern for pattern in found if pattern.endswith("$")]


def test_no_pattern_of_the_http_api_lets_a_line_feed_through_at_its_end() -> None:
    found = set()
    for resource in RESOURCES:
        for operation in resource.operations.values():
            for schemas in filter(None, (operation.query, operation.body)):
                for minor in range(40):
                    found |= set(patterns_within(schemas.schema_at(Version(1, minor))))
    assert len(found) >= 5
    assert not [pattern for pattern in found if pattern.endswith("$")]


@pytest.mark.parametrize("uuid", [UUID + "\n", UUID + " ", "\n" + UUID])
def test_a_uuid_with_whitespace_around_it_is_refused(uuid: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        wire.decode(ResourceProvider, {"uuid": uuid, "name": "a", "generation": 0, "root_provider_uuid": UUID})


@pytest.mark.parametrize("end", [" ", "\n", "\t", "\u00a0"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (CreateResourceProvider, {"request_id": "r", "uuid": UUID}),
        (UpdateResourceProvider, {"request_id": "r", "uuid": UUID}),
        (ProviderReport, {"uuid": UUID}),
        (ChildProvider, {"parent": "host"}),
        (CreateHostAggregate, {"request_id": "r"}),
    ],
)
def test_a_new_name_that_ends_with_a_blank_is_refused(kind: type[Value], more: dict[str, Any], end: str) -> None:
    assert wire.decode_strictly(kind, {**more, "name": "a name"})
    with pytest.raises(errors.InvalidRequest) as caught:
        wire.decode_strictly(kind, {**more, "name": f"a name{end}"})
    assert caught.value.path == "$.name"


BUILD: dict[str, Any] = {
    "request_id": "r",
    "request_spec": {"project_id": "p", "user_id": "u", "flavor": {"vcpus": 1, "memory_mb": 1}},
    "instance_uuids": [UUID],
}


@pytest.mark.parametrize("inside", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x9b", "\u2028"])
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (BuildInstances, lambda name: {**BUILD, "names": [name]}),
        (CreateHostAggregate, lambda name: {"request_id": "r", "name": name}),
        (SetHostAggregate, lambda name: {"request_id": "r", "aggregate": "a", "name": name}),
        (
            CreateServerGroup,
            lambda name: {
                "request_id": "r",
                "group": {"uuid": UUID, "policy": "affinity"},
                "name": name,
                "project_id": "p",
            },
        ),
    ],
)
def test_a_new_name_with_a_control_character_is_refused(
    kind: type[Value], content: Callable[[str], dict[str, Any]], inside: str
) -> None:
    assert wire.decode_strictly(kind, content("eïn name\u200d"))
    with pytest.raises(errors.InvalidRequest) as caught:
        wire.decode_strictly(kind, content(f"a{inside}name"))
    assert caught.value.reason == "Expected a name without control characters that does not end with a blank"


def test_a_provider_may_have_any_name_that_placement_accepts() -> None:
    created = wire.decode_strictly(CreateResourceProvider, {"request_id": "r", "uuid": UUID, "name": "a\nname"})
    assert created.name == "a\nname"


def test_a_stored_name_that_ends_with_a_blank_is_still_read() -> None:
    stored = {"uuid": UUID, "name": "a name ", "generation": 0, "root_provider_uuid": UUID}
    assert wire.decode(ResourceProvider, stored).name == "a name "


@pytest.mark.parametrize("field", ["service_host", "nodename", "agent", "availability_zone"])
def test_the_report_of_a_host_finds_its_name_that_is_not_valid(field: str) -> None:
    names: dict[str, Any] = dict.fromkeys(("service_host", "nodename", "agent", "availability_zone"), "a name")
    assert HostReport(compute_node_uuid=UUID, **names).misnamed() is None
    for name, fault in (("a name ", "ends with a blank"), ("a\nname", "has a control character")):
        assert HostReport(compute_node_uuid=UUID, **{**names, field: name}).misnamed() == field
        assert fault_of_name(name) == fault
