"""Send valid and invalid content of every message to a cloud with servers: none may cause an unexpected fault.

`make test` sends a few messages of each kind. With FUZZ=long in the environment there are dozens.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import inspect
from support.bus.message_samples import every_message

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import errors, ids, messages
from moorage.messages import wire
from moorage.messages.basis import ListInParts
from moorage.messages.wire import Message, Mutation
from moorage.model import LONGEST_TEXT, Flavor, RequestSpec

LONG = os.environ.get("FUZZ") == "long"
#: Deletions come last, so that the others find something.
KINDS = sorted(
    (kind for kind in every_message() if hasattr(kind, "topic")),
    key=lambda kind: (kind.method.startswith("delete"), kind.topic, kind.method),
)
CELL = ids.derived("harness", 0, "cell", "cell1")
#: The topic and the server in a cell, by the topic of the message.
TARGETS = {"conductor.cell": (f"conductor.{CELL}", None), "compute": (f"compute.{CELL}", "agent-cell1")}
#: A server that no drawn message names.
SPARED = ids.derived("spared server")
SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=64))
#: Some texts exist in the cloud, and others are hard to store or to compare.
TEXTS = (
    *("p", "u", "nova", "agent-cell1", "cell1-host-0001", "CELL1-HOST-0001", "VCPU", "MEMORY_MB", "CUSTOM_FUZZED"),
    *("INSTANCE", "_A", "1", "same_subtree", "", "é", "e\u0301", "\u0131", "a\0b", "\U0001f600" * 255),
    "x" * LONGEST_TEXT,
)
#: Content that no field allows, or only some fields.
SPOILS: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), "", " ", "x" * 300, "x" * 5000),
    *("\ud800", "\0", [], {}, [None], {"\ud800": 1}, [1] * 20_001, json.loads("[" * 120 + "]" * 120)),
)


def kinds(*topics: str) -> pytest.MarkDecorator:
    chosen = [kind for kind in KINDS if kind.topic in topics]
    return pytest.mark.parametrize("kind", chosen, ids=lambda kind: f"{kind.topic} {kind.__name__}")


@dataclass
class Fuzzed:
    """A cloud with servers, the uuids that exist there, and the exceptions that its services did not expect."""

    cloud: RunningCloud
    uuids: list[str]
    faults: list[logging.LogRecord] = field(default_factory=list)

    def send(self, kind: type[Message[Any]], content: Any) -> Any:
        """Send content that a client would refuse to send."""
        topic, server = TARGETS.get(kind.topic, (kind.topic, None))
        client = self.cloud.client(topic, server=server)._client
        answer = client.prepare(timeout=20.0, version=kind.newest_version()).call({}, kind.method, **content)
        return wire.decode(kind.reply_type(), answer)

    def fuzz(self, kind: type[Message[Any]]) -> None:
        valid = content(inspect.type_info(kind), "", self.uuids)

        @settings(
            max_examples=60 if LONG else 8,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def send_drawn(data: st.DataObject) -> None:
            drawn = data.draw(valid)
            if "request_id" in drawn and issubclass(kind, Mutation):
                # Most orders are new, and some are repeated.
                drawn["request_id"] = f"{kind.topic}.{kind.method}.{data.draw(st.integers(0, 50))}"
            spoiled = spoil(data, drawn) if data.draw(st.booleans()) else drawn
            refusal = None
            try:
                self.send(kind, spoiled if isinstance(spoiled, dict) else drawn)
            except errors.MoorageError as fault:
                refusal = fault
            assert not isinstance(refusal, errors.InternalError | errors.Unavailable), f"{refusal}: {spoiled!r:.1000}"

        send_drawn()

    def stuck(self) -> list[str]:
        """Return the instances that are moving although no operation moves them."""
        moving = self.moving()
        busy = {one.subject for one in self.send(messages.ListOperations, {})}
        # Their operation may have ended between the two lists.
        return sorted((moving - busy) & self.moving())

    def moving(self) -> set[str]:
        return {one.uuid for one in self.send(messages.ListInstances, {}) if one.state == "moving"}


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Fuzzed]:
    with RunningCloud(CloudSpec(hosts=3, settings={"scheduler": {"view_max_age": 0.0}})) as cloud:
        client, servers = cloud.client("conductor"), [ids.derived("fuzzed server", number) for number in range(6)]
        built = (SPARED, *servers)
        client.call(messages.BuildInstances(request_id="fuzzed", request_spec=SPEC, instance_uuids=built))
        wait_until(lambda: all(one.state == "active" for one in client.call(messages.ListInstances())), "the servers")
        moved = client.call(messages.MigrateInstance(request_id="moved", instance_uuid=servers[0])).migration_uuid
        shown = [client.call(messages.ShowInstance(instance_uuid=uuid)) for uuid in servers]
        attempts = [attempt.attempt_id for one in shown for attempt in one.attempts]
        claims = [str(one.claim_id) for one in cloud.client("placement").call(messages.ListClaims())]
        nodes = [host.compute_node_uuid for host in cloud.hosts()]
        found = Fuzzed(cloud, [*servers, *servers, moved, CELL, *nodes, *claims, *attempts, ids.derived("nothing")])
        handler = UnexpectedFaults(found.faults)
        logging.getLogger().addHandler(handler)
        yield found
        logging.getLogger().removeHandler(handler)


class UnexpectedFaults(logging.Handler):
    """Keeps what the services log with an exception."""

    def __init__(self, faults: list[logging.LogRecord]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._faults.append(record)


def content(info: Any, name: str, uuids: list[str]) -> st.SearchStrategy[Any]:
    """Return the strategy of the encoded values of a type, for the field ``name``."""
    match info:
        case inspect.StructType():
            parts = {each.encode_name: content(each.type, each.name, uuids) for each in info.fields}
            optional = {each.encode_name: parts.pop(each.encode_name) for each in info.fields if not each.required}
            return st.fixed_dictionaries(parts, optional=optional)
        case inspect.UnionType():
            return st.one_of(*(content(each, name, uuids) for each in info.types))
        case inspect.DictType():
            key, value = content(info.key_type, name, uuids), content(info.value_type, name, uuids)
            return st.dictionaries(key, value, min_size=info.min_length or 0, max_size=2)
        case inspect.ListType() | inspect.VarTupleType():
            return st.lists(content(info.item_type, name, uuids), min_size=info.min_length or 0, max_size=2)
        case inspect.TupleType():
            return st.tuples(*(content(each, name, uuids) for each in info.item_types)).map(list)
    return plain(info, name, uuids)


def plain(info: Any, name: str, uuids: list[str]) -> st.SearchStrategy[Any]:
    match info:
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.IntType():
            least, most = info.ge if info.ge is not None else 0, info.le if info.le is not None else 2**63 - 1
            return st.sampled_from([value for value in (0, 1, 2, least, least + 1, most) if least <= value <= most])
        case inspect.FloatType():
            return st.sampled_from([5e-324, 0.5, 1.0, info.le or 1.7e308])
        case inspect.StrType():
            least, most = info.min_length or 0, info.max_length or LONGEST_TEXT
            texts = [text for text in (name, *TEXTS, *uuids) if re.search(info.pattern or "", text)]
            return st.sampled_from([text for text in texts if least <= len(text) <= most])
        case inspect.BoolType():
            return st.booleans()
    return st.sampled_from([None, 1, 2**64, "x", {"a": [1.5]}])


def spoil(data: st.DataObject, value: Any) -> Any:
    """Return content with one part replaced, or with an unknown field."""
    places = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    if not places or data.draw(st.integers(0, 4)) == 0:
        alike: list[Any] = []
        if isinstance(value, str):
            alike = [value.upper(), value.replace("-", ""), f"{{{value}}}", value * 300]
            alike += [value + ending for ending in ("\n", "\ud800", "\0")]
        elif isinstance(value, int | float):
            alike = [-value - 1, value + 0.5, value * 2**33, str(value), float("nan")]
        is_alike: bool = data.draw(st.booleans())
        return data.draw(st.sampled_from(alike if alike and is_alike else SPOILS))
    place = data.draw(st.sampled_from(list(places)))
    copy = value.copy()
    copy[place] = spoil(data, value[place])
    return {**copy, "no_such_field": 1} if isinstance(copy, dict) and data.draw(st.integers(0, 9)) == 0 else copy


@kinds("conductor", "placement", "scheduler")
def test_no_message_on_the_main_bus_causes_an_unexpected_fault(fuzzed: Fuzzed, kind: type[Message[Any]]) -> None:
    fuzzed.fuzz(kind)


def test_after_all_messages_on_the_main_bus_no_instance_is_moving_without_an_operation(fuzzed: Fuzzed) -> None:
    # Few resizes are drawn that a scheduler must refuse. The refusal of this one is about a very long text.
    flavor = {"vcpus": 1, "memory_mb": 64, "extra_specs": {"same_subtree": "x" * LONGEST_TEXT}}
    fuzzed.send(messages.ResizeInstance, {"request_id": "refused", "instance_uuid": SPARED, "flavor": flavor})
    wait_until(lambda: SPARED not in fuzzed.moving() and not fuzzed.stuck(), fuzzed.stuck)


# After these, an instance may be moving for ever: its conductor has not sent them.
@kinds("conductor.cell", "compute")
def test_no_message_on_the_bus_of_a_cell_causes_an_unexpected_fault(fuzzed: Fuzzed, kind: type[Message[Any]]) -> None:
    fuzzed.fuzz(kind)


def test_after_all_messages_everything_can_be_read_and_no_exception_was_unexpected(fuzzed: Fuzzed) -> None:
    for kind in KINDS:
        if issubclass(kind, ListInParts) and kind is not messages.ListProviderAllocations:
            fuzzed.send(kind, {})
    assert not fuzzed.send(messages.CompareView, {}).drifted
    assert not fuzzed.send(messages.AuditStore, {}).drifted
    assert not [record.getMessage() for record in fuzzed.faults]
