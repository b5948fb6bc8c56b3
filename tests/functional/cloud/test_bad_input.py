"""Test that the services answer invalid messages with an error that names the invalid field, and write nothing."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from sqlalchemy import func, select
from support.operations.instances import build

from harness.cloud import CloudSpec, RunningCloud
from moorage import errors, ids
from moorage.db.schemas import known_schemas
from moorage.messages import ShowInstance
from moorage.messages.wire import Message, encode
from moorage.model import Destination, Flavor, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=512))


class Raw(Message[Any], frozen=True, kw_only=True):
    """A message without types: it is sent with any values."""

    topic: ClassVar[str] = "any"
    method: ClassVar[str] = "any"
    request_id: Any = None
    request_spec: Any = None
    instance_uuids: Any = None
    num_alternates: Any = None
    extra: Any = None


class RawSelect(Raw, frozen=True, kw_only=True):
    method = "select_destinations"


class RawBuild(Raw, frozen=True, kw_only=True):
    method = "build_instances"


@pytest.fixture(scope="module")
def cloud() -> Iterator[RunningCloud]:
    with RunningCloud(CloudSpec(hosts=2)) as cloud:
        yield cloud


def rows(cloud: RunningCloud) -> dict[str, int]:
    """Return the number of rows of the tables that a request may write."""
    names = {"allocations", "consumers", "tombstones", "conductor_instances", "conductor_operations", "cell_instances"}
    tables = [table for schema in known_schemas().values() for table in schema.metadata.sorted_tables]
    return cloud.database.read(
        lambda connection: {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in tables
            if table.name in names
        }
    )


def spoiled(**changes: Any) -> dict[str, Any]:
    spec: dict[str, Any] = encode(SPEC)
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = spec
        for parent in parents:
            part = part[parent]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return spec


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (spoiled(flavor__vcpus=...), "$.request_spec.flavor"),
        (spoiled(flavor__vcpus=-1), "$.request_spec.flavor.vcpus"),
        (spoiled(flavor__memory_mb="many"), "$.request_spec.flavor.memory_mb"),
        (spoiled(flavor__gold=1), "$.request_spec.flavor"),
        (spoiled(colour="red"), "$.request_spec"),
        (spoiled(project_id=...), "$.request_spec"),
        (spoiled(project_id="x" * 10_000_000), "$.request_spec.project_id"),
        (spoiled(scheduler_hints={"junk": "x" * 10_000_000}), "$.request_spec.scheduler_hints[...]"),
        ("x" * 10_000_000, "$.request_spec"),
        (None, "$.request_spec"),
        ([[[]]], "$.request_spec"),
    ],
)
@pytest.mark.parametrize("kind", [RawSelect, RawBuild])
def test_an_invalid_request_is_refused_with_the_path_of_the_invalid_field_and_changes_nothing(
    cloud: RunningCloud, kind: type[Raw], spec: Any, path: str
) -> None:
    topic = "scheduler" if kind is RawSelect else "conductor"
    before = rows(cloud)
    message = kind(
        request_id=ids.fresh(),
        request_spec=spec,
        instance_uuids=[ids.fresh()],
        num_alternates=1 if kind is RawSelect else None,
    )

    with pytest.raises(errors.InvalidRequest) as refused:
        cloud.client(topic).call(message)

    assert refused.value.path == path if spec is not None else refused.value.path in ("$", path)
    assert len(str(refused.value)) < 1000
    assert rows(cloud) == before


def test_an_unknown_field_of_the_message_itself_is_refused(cloud: RunningCloud) -> None:
    message = RawSelect(
        request_id=ids.fresh(), request_spec=encode(SPEC), instance_uuids=[ids.fresh()], num_alternates=1, extra=1
    )

    with pytest.raises(errors.InvalidRequest, match="extra"):
        cloud.client("scheduler").call(message)


def test_an_unknown_cell_is_named_in_the_reason_of_the_error(cloud: RunningCloud) -> None:
    nowhere = RequestSpec(
        project_id="p",
        user_id="u",
        flavor=Flavor(vcpus=1, memory_mb=512),
        requested_destination=Destination(cell=ids.fresh()),
    )

    instance = build(cloud, nowhere)

    assert instance.state == "error"
    assert "no cell" in str(instance.reason)


def test_an_unknown_instance_is_not_found(cloud: RunningCloud) -> None:
    with pytest.raises(errors.InstanceNotFound):
        cloud.client("conductor").call(ShowInstance(instance_uuid=ids.fresh()))
